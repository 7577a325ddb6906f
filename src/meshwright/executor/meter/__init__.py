"""What is measured while a program runs: memory and seconds."""
