"""Handlers of training: forward and backward, step, reductions, vocabulary."""
