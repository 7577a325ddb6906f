"""Tests of the pages: what they show is run, and what is public is on them."""
