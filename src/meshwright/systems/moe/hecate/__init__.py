"""The system hecate: its card, its mechanism."""
