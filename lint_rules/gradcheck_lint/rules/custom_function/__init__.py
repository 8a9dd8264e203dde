"""Rules about what a custom autograd.Function promises."""
