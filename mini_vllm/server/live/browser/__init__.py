"""The live page in Chromium: its tests (``make browser``), and the cost of a redraw."""
