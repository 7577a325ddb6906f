"""Tests of the studies behind executed claims."""
