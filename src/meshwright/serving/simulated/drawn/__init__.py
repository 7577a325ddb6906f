"""Answers of a simulated engine, for clients: drawn tokens at the pace of its steps."""
