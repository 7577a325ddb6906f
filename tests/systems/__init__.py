"""Tests of the published systems, mirrored by family."""
