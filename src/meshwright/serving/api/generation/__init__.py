"""One request under way: what is served, how a request is made of a body, and its text as it comes."""
