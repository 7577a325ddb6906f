"""Cutting a user's modules by tensor rules."""
