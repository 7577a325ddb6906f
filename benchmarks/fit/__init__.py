"""Fits of kernels, collectives and steps, and what is left out to judge them."""
