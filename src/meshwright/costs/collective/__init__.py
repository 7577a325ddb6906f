"""Seconds of collectives, from measured curves."""
