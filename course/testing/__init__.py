"""Helpers for the labs' tests: calls that must fail, and measurements of what a call costs."""
