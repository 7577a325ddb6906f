"""Megatron-LM: arguments in, arguments out."""
