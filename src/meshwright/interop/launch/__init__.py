"""Launching: scripts, torchrun, Slurm, Kubernetes."""
