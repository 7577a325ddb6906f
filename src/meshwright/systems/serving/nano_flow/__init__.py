"""The system nano_flow: its card, its mechanism."""
