"""Processes for what others wrote: with bounds for time, memory and size, and replaced when they break one."""
