"""``course init`` and ``course update``: the course in the student's own folder."""
