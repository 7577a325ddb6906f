"""What lies in a model's folder: tensors as they are mapped, and weights that were quantised, as numbers again. No torch."""
