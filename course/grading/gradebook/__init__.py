"""``gradebook.toml``: what counts. Points, deadlines, extensions, extra credit, attempts and groups.

    fields    the values of a TOML file, each checked; all problems are collected
    times     time zones, durations, deadlines, started days
    rules     the gradebook as data
    read      the file becomes rules, checked against the course and the class
    weights   the points of each test
    marks     results, submission times and rules become marks

Nothing here runs a test, and nothing here is stored: the marks are computed from the stored results on every call.
"""
