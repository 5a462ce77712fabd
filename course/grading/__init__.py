"""Grading a class: the tests run in the grader's process, each student's file runs in a sandbox."""
