"""Texts as vectors, and what is nearest to a query."""
