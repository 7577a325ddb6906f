"""Tests of the command line: most run in this process, a few start the program."""
