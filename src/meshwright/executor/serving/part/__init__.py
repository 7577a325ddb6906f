"""Parts of a served layer that some families alone have."""
