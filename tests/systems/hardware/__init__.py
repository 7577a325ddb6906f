"""Tests of systems of the family hardware."""
