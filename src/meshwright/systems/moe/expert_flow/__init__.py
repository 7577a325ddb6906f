"""The system expert_flow: its card, its mechanism."""
