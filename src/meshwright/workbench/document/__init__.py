"""Documents: what is seen, as plain JSON with columns, one builder for each kind of thing."""
