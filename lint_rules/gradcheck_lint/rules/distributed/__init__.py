"""Rules about several processes."""
