"""What takes a step: engines by protocol, and the runners of models behind the real ones."""
