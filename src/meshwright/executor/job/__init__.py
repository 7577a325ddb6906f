"""A job on processes: pool, worker, launch, reports."""
