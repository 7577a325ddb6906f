"""The system apex: its card, its mechanism."""
