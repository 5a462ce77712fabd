"""``course init`` and ``course update``: the course in a folder of one's own."""
