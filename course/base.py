"""The lab that a later lab builds on: ``from course.base import lab_2_1 as base``, then ``base.BlockPool``.

Student files import this path; the code is in ``course.lab.base_labs``.
"""

from course.lab.base_labs import __getattr__ as __getattr__
