"""One run of a lab's tests: what is tested, in which process, and with which result."""
