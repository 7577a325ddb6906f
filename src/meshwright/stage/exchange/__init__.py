"""What a stage exchanges inside its computes."""
