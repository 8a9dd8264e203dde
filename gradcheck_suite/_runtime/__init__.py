"""What every room needs to know of the process that it runs in."""
