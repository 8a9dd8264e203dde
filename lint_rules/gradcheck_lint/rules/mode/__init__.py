"""Rules about training and evaluation mode."""
