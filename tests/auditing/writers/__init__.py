"""A bank of programs that overwrite a tensor between its forward and its backward."""
