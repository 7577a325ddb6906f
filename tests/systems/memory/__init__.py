"""Tests of systems of the family memory."""
