"""The command line. Commands import what they need when they run, so that `--help` is there at once."""

from meshwright.cli.app import main

__all__ = ["main"]
