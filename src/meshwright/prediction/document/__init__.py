"""Steps whose sequences hold documents of different lengths: what their rows cost, and the mean over drawn batches."""
