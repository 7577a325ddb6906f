"""The system Ring Attention: its card; the ring is the package's own."""
