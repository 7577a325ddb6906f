"""The system TPI-LLM: its card, its mechanism."""
