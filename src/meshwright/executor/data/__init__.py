"""Text, token shards, packing and the order of samples."""
