"""A trace as it is drawn: its rows as columns, their kinds, and the critical path."""
