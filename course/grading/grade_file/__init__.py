"""Grading one file: its lab's tests run in the grader's process, the file runs in a sandbox."""
