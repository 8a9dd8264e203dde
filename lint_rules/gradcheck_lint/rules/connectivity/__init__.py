"""Rules about graphs that are cut and parameters that nobody trains."""
