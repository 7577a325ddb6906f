"""A rank's training: stages, batches, learning rate, saved jobs."""
