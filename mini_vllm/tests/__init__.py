"""Tests of the engine as a whole; those of a single module are next to it."""
