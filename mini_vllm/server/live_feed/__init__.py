"""What the live page hears: each step of the engine as an event, for all who watch."""
