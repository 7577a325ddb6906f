"""Programs as they lie in files that hold arrays: rows of tables as JSON, lists that are equal once."""
