"""Several simulated replicas under one load: which of them gets a request, and prompts computed apart from outputs."""
