"""For the tests of labs: calls that must raise, and calls that must not.

The labs' tests import this path; the code is in ``course.testing.expect``.
"""

from course.testing.expect import must_answer as must_answer
from course.testing.expect import must_raise as must_raise
