"""The events of the live page: each step of the engine, sent to every watcher."""
