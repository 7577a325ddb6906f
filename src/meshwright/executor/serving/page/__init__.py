"""Paged keys and values: the blocks, and attention over them."""
