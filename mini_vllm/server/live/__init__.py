"""The live page: it draws what the engine does, as it happens, and can pause, step and restart the engine.

The events come from ``server/live_feed``: ``steps`` makes them, ``window`` keeps the last ones, ``feed`` sends them to
every watcher, and ``watcher`` is one of those.

    look       colours, letters and sizes, taken from the pictures
    small_pool a pool that fits on the screen, with two prompts that share blocks in it
    files      the page's files, by name
    stream     the events on their way to a page
    routes     the addresses: the page, its events, pause, step and restart
    page/      the page itself: plain JavaScript, which draws the shapes of ``mini_vllm.pictures``
    browser/   its tests in Chromium, and the cost of a redraw
"""
