"""What a lab is: its files, starter, tests, contract, hints, mutants, and the parts that it gives the engine."""
