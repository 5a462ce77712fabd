"""A whole step in one call of C: what computes on a Linux CPU if a C compiler is installed.

    step.c      the step; team.h shares its loops among threads
    build.py    compiles both at first use, and keeps the library
    weights.py  the weights as step.c reads them
    runner.py   the ModelRunner that calls it
    advice.py   what would make this machine faster
"""
