"""Rules about gradients that are wrong."""
