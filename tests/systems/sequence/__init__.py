"""Tests of systems of the family sequence."""
