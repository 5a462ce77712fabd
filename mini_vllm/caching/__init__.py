"""Parts of ``kv_cache.py``: the index of whole blocks, the checks of arguments, and the counters."""
