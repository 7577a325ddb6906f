"""The simulated engine: what steps of a batch take on a cluster, a table of them, replicas, and memory for blocks."""
