"""What rules of several families ask of a file: callers, effects that are not seen, layers."""
