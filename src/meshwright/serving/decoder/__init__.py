"""What a step gives a sequence that decodes: one token, or several that were proposed and verified (the slot `decoder`)."""
