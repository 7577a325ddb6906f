"""Plans for a load of requests: what serves them within their objective, and what it costs."""
