"""What the labs' tests call: calls that must fail, and measures of what a call costs."""
