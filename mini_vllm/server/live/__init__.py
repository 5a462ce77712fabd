"""The live page: what the engine does, drawn as it happens, and a hand on the engine.

    steps      one step, or what changed between two, as an event for the page
    window     the last events, and what was so before them
    feed       the engine's listener: it tells everybody who watches
    watcher    one of them, in its event loop
    look       colours, letters and sizes, taken from the pictures
    small_pool a pool that fits on the screen, with two prompts that share blocks in it
    files      the page's files, by name
    stream     the events on their way to a page
    routes     all of it by its address: the page, its events, pause, step and restart
    page/      the page itself: plain JavaScript, which draws the shapes of ``mini_vllm.pictures``
    browser/   its tests in Chromium, and what a redraw costs
"""
