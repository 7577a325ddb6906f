"""Relays: steps between which an operand travels around an axis, what each computes, and what it sends."""
