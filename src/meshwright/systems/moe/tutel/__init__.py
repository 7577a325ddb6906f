"""The system Tutel: its card, its mechanism, its layer."""
