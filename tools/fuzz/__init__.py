"""Fuzzers: random cases for as long as one likes, each drawn from its seed and number, so that any can be repeated.

    python tools/fuzz engine --seconds 600 --seed 1    random schedules against each request alone
    python tools/fuzz models --seconds 600             networks of random shapes against mlx-lm
    python tools/fuzz sampler --seconds 600            random draws against numpy
    python tools/fuzz async --seconds 600              random streams, many of them cancelled

    python tools/fuzz engine --seed 1 --case 17        one case again

A fuzzer is a module with ``run_case(seed, case)``. It draws a case from these two numbers and nothing else, runs it,
returns counts of what it tried, and raises an AssertionError that says what was drawn and what is wrong. The first few
cases of each run in the suites (``test_fuzz.py``, ``test_fuzz_models.py``).

    engine        happens: work, work_draw   must come to: engine_checks, alone
    async_engine  happens: callers           must come to: caller_checks
    models        drawn: model_cases         must come to: oracle (mlx-lm)
    sampler                                  must come to: sampler_reference
    of several    draws, networks, faults, expect
"""
