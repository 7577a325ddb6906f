"""Systems that say where parameters, gradients and optimizer states are kept."""
