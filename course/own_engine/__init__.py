"""An engine of the student's own parts: what it is told to do, the process it runs in, and what must hold."""
