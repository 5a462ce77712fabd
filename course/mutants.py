"""Wrong solutions, each with the test that must catch it: ``from course.mutants import Mutant``.

The labs' galleries import this path; the code is in ``course.lab.mutants``.
"""

from course.lab.mutants import Mutant as Mutant
from course.lab.mutants import mutants_of as mutants_of
