"""Steps that verify proposed tokens, on paper: what they take, and how many tokens come of them."""
