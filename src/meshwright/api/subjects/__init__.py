"""The verbs simulate, load, find, doctor, and schedules side by side."""
