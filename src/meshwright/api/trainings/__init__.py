"""The verbs train and checkpoint."""
