"""The vocabulary's layers divided over the pipeline."""
