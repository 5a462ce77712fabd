"""Who may ask, and how much: keys, limits, bodies and connections."""
