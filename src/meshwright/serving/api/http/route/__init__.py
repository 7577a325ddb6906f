"""Paths: what each takes, and who answers it."""
