"""Programs as they lie in files: rows of tables as JSON, lists that are equal once; and what a row is called in a profile."""
