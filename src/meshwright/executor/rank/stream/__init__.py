"""How the rows of a rank run: on the host, on streams beside it, and where their times are noted."""
