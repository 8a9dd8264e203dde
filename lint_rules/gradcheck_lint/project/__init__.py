"""Find what a file imports from its own project: text in, the definitions that it uses out."""
