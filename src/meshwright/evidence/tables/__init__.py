"""Tables of published training steps, row by row."""
