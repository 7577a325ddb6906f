"""Claims of systems, and their recomputation."""
