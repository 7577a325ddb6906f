"""The verb for loads: plans that serve recorded requests."""
