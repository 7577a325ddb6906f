"""Texts that tests compare with; UPDATE_GOLDEN=1 in the environment writes them anew."""
