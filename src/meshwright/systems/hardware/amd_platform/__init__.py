"""The system amd_platform: its card, its mechanism, its study."""
