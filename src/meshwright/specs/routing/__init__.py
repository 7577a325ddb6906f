"""Which experts tokens go to: routing traces, how they are kept, and on which device each expert stands."""
