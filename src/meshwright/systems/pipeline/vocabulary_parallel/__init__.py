"""The system vocabulary_parallel: its card, its mechanism, its study."""
