"""``course grade``: a whole class, from its submissions to the results that are given back."""
