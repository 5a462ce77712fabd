"""Submissions that attack the grader, and the suite that grades them: each must score what it honestly earns."""
