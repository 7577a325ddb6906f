"""The system redco: its card, its mechanism, its study."""
