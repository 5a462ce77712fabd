"""Fuzzers: random cases for any length of time. Each case is drawn from a seed and a number, so it can be repeated.

    python tools/fuzz engine --seconds 600 --seed 1    random schedules against each request alone
    python tools/fuzz models --seconds 600             networks of random shapes against mlx-lm
    python tools/fuzz models --transformers PYTHON     and random configs against transformers 5, in that interpreter
    python tools/fuzz sampler --seconds 600            random draws against numpy
    python tools/fuzz async --seconds 600              random streams, many of them cancelled
    python tools/fuzz speculation --seconds 600        random schedules with drafts
    python tools/fuzz structured --seconds 600         outputs that must match

    python tools/fuzz engine --seed 1 --case 17        one case again

A fuzzer is a module with ``run_case(seed, case)``. It draws a case from these two numbers and nothing else, runs it,
returns counts of what it tried, and raises an AssertionError that says what was drawn and what is wrong. The first few
cases of each fuzzer run in the test suites (``test_fuzz.py``, ``test_fuzz_models.py``).

    fuzzer        cases                      checks
    engine        work, work_draw            engine_checks, alone
    speculation   work, work_draw            engine_checks, alone
    async_engine  callers                    caller_checks
    models        model_cases                oracle (mlx-lm)
                  config_cases               with_transformers, transformers_worker
    sampler                                  sampler_reference
    structured                               re, jsonschema
    shared        draws, networks, faults    expect
"""
