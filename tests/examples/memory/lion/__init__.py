"""The system lion: its card, its mechanism."""
