"""Serving: requests, blocks of keys and values, policies that choose each step's batch, and one loop for every engine."""
