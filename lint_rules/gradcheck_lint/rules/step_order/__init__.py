"""Rules about zero_grad, backward, clipping, step, and who owns what."""
