"""``course grade``: a whole class, from what was handed in to what is given back."""
