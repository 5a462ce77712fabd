"""Access control and limits: keys, rates, bodies and connections."""
