"""What a forward keeps for its backward, and what is made again."""
