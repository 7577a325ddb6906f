"""The system eager_1f1b: its card, its mechanism."""
