"""Tests of the room evidence."""
