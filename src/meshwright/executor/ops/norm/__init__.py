"""Normalisation of a token's numbers, forward and backward: layer norm, root mean square."""
