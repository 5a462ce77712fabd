"""Parts of ``engine.py``: from a prompt to a request, from a plan to tokens, and the sizes of an engine."""
