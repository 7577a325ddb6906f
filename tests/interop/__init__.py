"""Tests of configurations and logs of other programs."""
