"""Attention whose softmax has a learned number beside the scores of keys."""
