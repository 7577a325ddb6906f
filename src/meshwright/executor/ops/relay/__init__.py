"""Attention whose queries travel, and attention by whole rows of scores."""
