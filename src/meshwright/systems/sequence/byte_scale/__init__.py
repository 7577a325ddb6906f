"""ByteScale: its card, its mechanism."""
