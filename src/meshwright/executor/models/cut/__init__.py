"""A user's module tree cut by tensor rules: each device has its part of every layer, and layers exchange inside."""
