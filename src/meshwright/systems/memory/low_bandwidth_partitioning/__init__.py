"""The system low_bandwidth_partitioning: its card, its mechanism, its study."""
