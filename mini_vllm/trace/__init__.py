"""What happened, step by step: recorded, read back, drawn."""
