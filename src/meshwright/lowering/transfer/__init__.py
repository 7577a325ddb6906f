"""Sends and receives between stages, and where receives stand."""
