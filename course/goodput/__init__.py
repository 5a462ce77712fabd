"""Lab 4.4, which has a score: the arena, its traces, what a policy is compared with, and the recorder of traces."""
