"""Tests of executor/ops."""
