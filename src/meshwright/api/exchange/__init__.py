"""The verbs import, export, adapt, validate and calibrate."""
