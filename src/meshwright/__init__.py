"""meshwright turns a model, a cluster and a workload into a plan, shows its cost, runs it, and compares the two."""

__version__ = "0.1.0"
