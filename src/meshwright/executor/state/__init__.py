"""Parameter groups on a rank: whole or sharded, with their optimizer state."""
