"""What crosses between grader and sandbox: messages, values, objects by handle, exceptions. It imports nothing
else of the course."""
