"""The system FlexSP: its card, its mechanism."""
