"""The system MoETuner: its card, its mechanism."""
