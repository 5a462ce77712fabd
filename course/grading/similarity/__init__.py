"""A search for submissions that are similar where they could differ."""
