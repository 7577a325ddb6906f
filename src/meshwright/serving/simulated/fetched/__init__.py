"""Weights that are fetched, on paper: the blocks of a stage, their bytes on a device, and what a step waits for them."""
