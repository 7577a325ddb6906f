"""Training stacks: what each one does."""
