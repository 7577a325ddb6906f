"""The commands show, list, check and simulate."""
