"""The system skip_pipe: its card, its mechanism, its study."""
