"""Systems that choose a plan: searches and rules of thumb, each after its paper."""
