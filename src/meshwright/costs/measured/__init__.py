"""Prices of a computer that was measured here."""
