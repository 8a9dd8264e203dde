"""Model what a function does, told once for all rules: bindings, loops, grad mode, events."""
