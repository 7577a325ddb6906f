"""The system hpz: its card, its mechanism."""
