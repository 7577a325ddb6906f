"""What `make gpu` does on a machine with a CUDA device: equality, kernels beside their curves, a training beside its plan."""
