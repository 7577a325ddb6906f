"""Prices of a training step's works."""
