"""The live page in Chromium: its tests (``make browser``), and what a redraw costs."""
