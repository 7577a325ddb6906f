"""Zeppelin: its card, its mechanism."""
