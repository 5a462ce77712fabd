"""Random cases for any length of time. Each case is drawn from a seed and a number, so it can be repeated.

    python tools/fuzz models --seconds 600               networks of random shapes against mlx-lm
    python tools/fuzz models --transformers PYTHON       and random configs against transformers 5, in that interpreter
    python tools/fuzz speculation --seed 1 --cases 3000  random schedules with drafts against an uncontended engine

    python tools/fuzz speculation --seed 1 --case 17     one case again

A fuzzer is a module with ``run_case(seed, case)``. It draws a case from these two numbers and nothing else, runs it,
returns counts of what it tried, and raises an AssertionError that says what was drawn and what is wrong. The first few
cases of each fuzzer run in the test suites.
"""
