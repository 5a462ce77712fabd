"""What happened, step by step: recorded, read back, drawn.

    recorder   an engine tells of its steps; StepTrace writes them down
    files      a trace as a file, and what must be in it
    history    a trace replayed: what every request and every block did in each step
    svg        the picture, made of a sheet (sizes, shapes), a legend and three panels: tokens, requests, blocks
"""
