"""Stages as chains: the steps of a decoder, and what each segment of a stage is."""
