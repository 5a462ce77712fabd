"""Submissions of a class: whose they are, by the names that a platform gives them, and which file is which lab's.

    platforms ──▶ reader, in a process with limits ──▶ layout: one file or one sentence per lab, and what was left out

Nothing from a submission is run, imported or written under a name that the student chose. Nothing is guessed.
"""
