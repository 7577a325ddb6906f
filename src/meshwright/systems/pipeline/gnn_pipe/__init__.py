"""The system gnn_pipe: its card, its mechanism, its study."""
