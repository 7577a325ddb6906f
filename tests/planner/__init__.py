"""Tests of the room planner."""
