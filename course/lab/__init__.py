"""What a lab consists of: files, starter, tests, contract, hints, mutants, and the parts that it adds to the engine."""
