"""A lab's module for a script: ``from course.mine import lab_2_1``, then ``lab_2_1.BlockPool``.

Pages of the course tell students to use this path; the code is in ``course.student.my_labs``.
"""

from course.student.my_labs import __getattr__ as __getattr__
