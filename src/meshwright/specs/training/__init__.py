"""What is decided about a training beside its plan: rates and length, what is read, what is kept."""
