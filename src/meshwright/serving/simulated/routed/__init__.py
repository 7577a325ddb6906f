"""Experts of a simulated replica that are divided among its devices, and how uneven that is."""
