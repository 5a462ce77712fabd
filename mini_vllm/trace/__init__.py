"""What happened, step by step: recorded and read back. ``mini_vllm.pictures`` draws it.

    recorder        an engine tells of its steps; StepTrace writes them down
    files           a trace as a file, and what must be in it
    history         a trace replayed: what every request did in each step
    block_history   and every block
    runs            what their rows are made of: equal cells side by side
    summary         the run in words
"""
