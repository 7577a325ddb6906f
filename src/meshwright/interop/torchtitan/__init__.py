"""torchtitan: configurations in and out."""
