"""The protocol between grader and sandbox: messages, values, objects by handle, and exceptions. This package imports
nothing else from the course."""
