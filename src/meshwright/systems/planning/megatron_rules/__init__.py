"""The system megatron_rules: its card, its mechanism, its study."""
