"""Blocks of keys and values: who holds which, and which prefixes are there already."""
