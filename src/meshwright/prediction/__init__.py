"""What a plan will do: its program's step, memory and intervals."""
