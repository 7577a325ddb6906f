"""Closed forms of a whole space: costs, pipelines, memory."""
