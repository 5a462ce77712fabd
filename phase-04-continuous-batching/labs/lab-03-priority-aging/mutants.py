from course.mutants import Mutant

MUTANTS = []
