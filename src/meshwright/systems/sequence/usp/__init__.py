"""The system USP: its card; Ulysses inside a ring is the package's own."""
