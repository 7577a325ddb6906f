"""The system galvatron: its card, its mechanism, its study."""
