"""Refinement: every stage of a program becomes its chain of segments, and what they exchange becomes rows."""
