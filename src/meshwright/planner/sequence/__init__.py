"""Plans whose sequences are in groups of ranks that change by step."""
