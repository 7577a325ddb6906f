"""Models the executor can run, cut into stages of layers."""
