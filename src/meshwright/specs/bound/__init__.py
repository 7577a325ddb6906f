"""How much files of others may ask for, and reading those whose size is not what it seems."""
