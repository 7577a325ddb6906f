"""The space of plans: axes, degrees, sites."""
