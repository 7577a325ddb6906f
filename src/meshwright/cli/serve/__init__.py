"""Commands that serve, answer without a server, and load one."""
