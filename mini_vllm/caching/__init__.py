"""What ``kv_cache.py`` leans on: the index of whole blocks, the checks of its arguments, and what it counts."""
