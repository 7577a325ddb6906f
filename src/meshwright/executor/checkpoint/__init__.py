"""Checkpoints: pieces, index, folder, reading in any layout."""
