"""For the tests of labs: calls that must be refused, and calls that must not be.

The labs' tests import this path; what it does is in ``course.testing.expect``.
"""

from course.testing.expect import must_answer as must_answer
from course.testing.expect import must_raise as must_raise
