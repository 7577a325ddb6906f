"""The commands reproduce, systems and validate."""
