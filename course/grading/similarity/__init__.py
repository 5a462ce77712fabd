"""Which submissions are alike where they could differ."""
