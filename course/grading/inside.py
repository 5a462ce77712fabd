"""Runs in the sandbox."""
