"""The system gems: its card, its mechanism."""
