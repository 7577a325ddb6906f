"""Tests of systems of the family planning."""
