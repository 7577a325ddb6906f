"""Tests of the systems that change the architecture of a model."""
