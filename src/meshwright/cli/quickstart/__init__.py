"""The command quickstart."""
