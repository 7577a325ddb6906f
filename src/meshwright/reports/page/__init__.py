"""Pages and tables: HTML, plans, comparisons, validation."""
