"""Tests of systems of the family pipeline."""
