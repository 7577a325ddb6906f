"""Tests of the room specs."""
