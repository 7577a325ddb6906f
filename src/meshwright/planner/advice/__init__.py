"""What would help a plan, and what running it costs."""
