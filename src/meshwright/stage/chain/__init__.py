"""What a stage computes as a chain of segments and exchanges: the program inside a layer."""
