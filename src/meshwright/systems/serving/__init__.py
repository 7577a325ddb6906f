"""Systems that serve: how a step of a replica is made, where its weights lie, how its devices work together."""
