"""What torch itself refuses or warns of, explained."""
