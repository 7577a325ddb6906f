"""What is tried behind the ranking, of the best plans: stages that differ, microbatches in parts, a split vocabulary."""
