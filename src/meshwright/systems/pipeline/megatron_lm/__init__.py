"""The system megatron_lm: its card, its mechanism, its study."""
