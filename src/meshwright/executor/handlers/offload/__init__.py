"""What forwards keep, stored at the host and loaded again."""
