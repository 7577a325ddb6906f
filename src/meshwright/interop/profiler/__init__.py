"""Traces that torch.profiler wrote, of any framework's job: read, named after instructions, several ranks on one clock."""
