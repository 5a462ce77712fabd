"""What a student sees: progress, reports on tests, hints, and the commands that run their parts."""
