"""Measuring a device: cases, stages, the process that measures."""
