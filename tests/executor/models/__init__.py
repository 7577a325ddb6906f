"""Tests of executor/models."""
