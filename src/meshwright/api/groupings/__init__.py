"""Steps whose sequences are in groups of ranks that change: planned and simulated."""
