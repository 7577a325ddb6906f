"""Tests of systems for mixtures of experts."""
