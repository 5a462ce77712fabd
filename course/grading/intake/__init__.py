"""Submissions of a class, turned into bytes that are safe to pass on, and assigned to students and labs.

    find (whose is it, by names only) ──▶ settle with the roster ──▶ read, bounded ──▶ one file or one sentence per lab

Nothing from a submission is run, imported or written under a name that the student chose.
"""
