"""Instructions that share devices and links: the engine from event to event, and the reference it is tested against."""
