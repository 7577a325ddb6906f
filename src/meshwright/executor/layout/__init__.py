"""Boxes of tensors: flat shards, tensor shards, pieces."""
