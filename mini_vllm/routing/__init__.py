"""Helpers of ``router.py``: the count of requests in flight, and simple routers to compare with."""
