"""The system TokenRing: its card, what runs behind its claims."""
