"""Systems that change the architecture of a model so that devices wait less."""
