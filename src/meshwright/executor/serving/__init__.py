"""Serving with torch: packed tokens through a decoder over paged blocks of keys and values, in one process or several."""
