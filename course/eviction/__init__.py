"""Lab 3.5, which has a score: the arena, its traces, and the process that scores a policy."""
