"""Rules about tensors that are overwritten or replaced."""
