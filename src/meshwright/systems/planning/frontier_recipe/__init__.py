"""The system frontier_recipe: its card, its mechanism, its study."""
