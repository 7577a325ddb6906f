"""Tests: they mirror the package, one folder a room, beside the tests of the design itself (tests/design)."""
