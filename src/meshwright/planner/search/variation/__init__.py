"""What is tried behind the ranking, of the best plans: stages that differ, and microbatches in parts."""
