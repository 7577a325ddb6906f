"""The published systems, one folder each, by family."""
