"""Seconds of kernels on a chip, from measured curves."""
