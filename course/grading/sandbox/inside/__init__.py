"""What runs in the sandbox's own process before the student's file: it shuts the door behind itself.

Only the standard library is imported here, and relative modules: the course is out of reach.
"""
