"""What ``make demo`` shows."""
