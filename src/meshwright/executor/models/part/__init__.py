"""Parts of a block that are modules of their own: a mixture of experts."""
