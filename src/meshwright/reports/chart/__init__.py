"""Charts: bars, curves, frontiers."""
