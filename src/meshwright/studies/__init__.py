"""Studies: the runs behind executed claims. They train or sample on this machine, and need torch."""
