"""What is asked for: requests, how their tokens are drawn, where they come from."""
