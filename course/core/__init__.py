"""Helpers that every other package may use: messages, results, files, limits and terminal text."""
