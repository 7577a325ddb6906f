"""The system shallow_again: its card, its mechanism, its study."""
