"""Systems for mixtures of experts: where experts are, when they come, and who is sent to them."""
