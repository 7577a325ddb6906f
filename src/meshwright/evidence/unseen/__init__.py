"""How well steps are predicted that nobody here has seen: sources left out, few rows of one's own, more devices, order."""
