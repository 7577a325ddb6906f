"""The system mics: its card, its mechanism."""
