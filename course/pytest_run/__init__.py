"""One run of a lab's tests: what is tested, in which process, and what came of it."""
