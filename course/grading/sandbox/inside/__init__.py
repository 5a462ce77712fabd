"""The code that runs in the sandbox's own process before the student's file. It isolates the process.

Only the standard library and modules of this package are imported here: the course cannot be imported.
"""
