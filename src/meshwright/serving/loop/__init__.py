"""The loop that joins a scheduler with an engine, its clocks, and what it measures."""
