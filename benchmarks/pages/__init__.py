"""The pages that run what they show: their commands, snippets, outputs and figures, written anew or compared."""
