"""A process for a student's file, isolated as tightly as the machine allows."""

from course.grading.sandbox.launch import start
from course.grading.sandbox.levels import choose_level, describe
from course.grading.sandbox.process import Sandbox
from course.grading.sandbox.spec import Level, Limits, SandboxError, SandboxFiles

__all__ = ["Level", "Limits", "SandboxFiles", "Sandbox", "SandboxError", "choose_level", "describe", "start"]
