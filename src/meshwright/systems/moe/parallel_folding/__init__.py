"""The system MoE Parallel Folding: its card, its jobs."""
