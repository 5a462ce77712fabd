"""An engine of the student's own parts: its instructions, the process it runs in, and its invariants."""
