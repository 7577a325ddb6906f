"""The HTTP side: routes, limits, keys, errors, metrics, and a server that stops gracefully."""
