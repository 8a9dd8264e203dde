"""Rules about graphs that live too long."""
