"""The system ring self-attention: its card, what runs behind its claims."""
