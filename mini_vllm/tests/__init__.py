"""Suites of the engine as a whole; those of one module stand beside it."""
