"""Gathers, reductions and steps of parameter groups."""
