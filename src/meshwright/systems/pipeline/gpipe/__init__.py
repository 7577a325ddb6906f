"""The system gpipe: its card, its mechanism, its study."""
