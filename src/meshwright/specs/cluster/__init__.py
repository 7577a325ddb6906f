"""Devices, links, clusters and what is known of a computer."""
