"""Searches of a space, and the ranked plans they find."""
