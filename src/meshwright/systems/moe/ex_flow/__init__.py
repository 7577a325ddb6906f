"""The system ExFlow: its card, its mechanism."""
