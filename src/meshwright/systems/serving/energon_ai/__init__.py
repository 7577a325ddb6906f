"""The system energon_ai: its card, its mechanism, its study."""
