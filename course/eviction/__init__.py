"""Lab 3.5, which has a score: the arena, its traces, and the score of a policy."""
