"""The system ladder_residual: its card, its mechanism, its study."""
