"""Serving, for Python and for the command line: a server, answers without one, and load on a server."""
