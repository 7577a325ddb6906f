"""Where the weights of a replica lie: blocks, which of them come from elsewhere and when, and what waiting for them costs."""
