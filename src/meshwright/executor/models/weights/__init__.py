"""Weights of models: initialised, read and written."""
