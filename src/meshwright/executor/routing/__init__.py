"""Which experts tokens go to: what routers chose is recorded, rank by rank, and put together."""
