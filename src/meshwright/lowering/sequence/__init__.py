"""Programs of steps whose sequences are in groups of ranks."""
