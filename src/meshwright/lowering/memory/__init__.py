"""Passes that trade memory: recompute and offload."""
