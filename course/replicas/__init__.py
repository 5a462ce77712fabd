"""Lab 6.3: the simulated fleet, its traces, and the score of a router."""
