"""Ways to run a step: all of its rows at once, or in parts whose kernels run beside each other."""
