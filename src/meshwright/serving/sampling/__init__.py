"""How a step's tokens are drawn: parameters of many requests in one call, the same tokens whatever the batch."""
