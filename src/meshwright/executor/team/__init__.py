"""Teams of ranks and their collectives."""
