"""A process for a student's file, shut in as tightly as the machine allows."""

from course.grading.sandbox.data import Level, Limits, Room, SandboxError
from course.grading.sandbox.levels import choose_level, describe
from course.grading.sandbox.process import Sandbox
from course.grading.sandbox.starting import start

__all__ = ["Level", "Limits", "Room", "Sandbox", "SandboxError", "choose_level", "describe", "start"]
