"""Tests of systems of the family serving."""
