"""What a student sees: progress, test reports, hints, and the commands that run their parts."""
