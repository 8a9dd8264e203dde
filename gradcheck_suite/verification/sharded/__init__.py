"""Functions of tensors that lie in parts on several ranks."""
