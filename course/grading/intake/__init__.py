"""What a class hands in, made into bytes that are safe to pass on: who handed in what, and which file is which lab's.

    find (whose is it, by names only) ──▶ settle with the roster ──▶ read, bounded ──▶ one file or one sentence a lab

Nothing from a submission is run, imported or written under a name that the student chose.
"""
