"""Serving in the workbench: what a state asks of it, what one layout does to a load, which layouts a search finds."""
