"""Traces of a run, step by step: recorded and read back. ``mini_vllm.pictures`` draws them.

    recorder        StepTrace records the steps that an engine reports
    files           a trace as a file, and its format
    history         a trace replayed: the state of every request in each step
    block_history   the same for every block
    runs            the runs of equal cells that a row consists of
    summary         the run in words
"""
