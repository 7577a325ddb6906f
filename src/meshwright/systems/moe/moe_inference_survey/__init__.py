"""The system moe_inference_survey: its card, its mechanism."""
