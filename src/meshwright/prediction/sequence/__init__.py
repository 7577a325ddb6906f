"""What sequences of many lengths cost: formulas fitted to the prices of a plan."""
