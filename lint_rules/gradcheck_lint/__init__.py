"""Find autograd mistakes in source text; torch is neither needed nor imported."""
