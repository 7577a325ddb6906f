"""One rank's run of a program: interpreter, streams, values, handlers by name."""
