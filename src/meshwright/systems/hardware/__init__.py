"""Systems about a platform: what its chips, links and nodes ask of a model and a plan."""
