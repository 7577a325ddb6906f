"""Operators of layers and stages, with their work."""
