"""Attention and what masks and rotates it."""
