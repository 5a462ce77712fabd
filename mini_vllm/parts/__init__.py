"""The parts of an engine: their interfaces, what an adapter adds to a simpler part, and files of parts."""
