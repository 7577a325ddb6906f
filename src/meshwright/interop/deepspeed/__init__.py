"""DeepSpeed: configurations in and out."""
