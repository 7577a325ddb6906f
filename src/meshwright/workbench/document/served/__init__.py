"""Documents of loads that were served on paper: one layout, and what a search for layouts found."""
