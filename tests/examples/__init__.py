"""Systems as a newcomer adds them: a folder each, nothing edited elsewhere."""
