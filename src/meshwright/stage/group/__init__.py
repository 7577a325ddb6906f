"""Parameter groups: who holds them, and how many bytes they are."""
