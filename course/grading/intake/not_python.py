"""Descriptions of files that should be Python but cannot be run: a sentence for the student."""

from __future__ import annotations

import json

UTF8_MARK = b"\xef\xbb\xbf"
_MAGIC = {b"PK\x03\x04": "a zip archive", b"PK\x05\x06": "an empty zip archive", b"\x1f\x8b": "a gzip archive",
          b"%PDF": "a PDF", b"Rar!": "a RAR archive", b"7z\xbc\xaf": "a 7z archive", b"\x7fELF": "a program",
          b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture", b"{\\rtf": "a word-processor document",
          b"\xd0\xcf\x11\xe0": "a word-processor document"}
_UTF16 = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
#: Descriptions by suffix, where a .py was expected.
_BY_NAME = {".ipynb": "is a Jupyter notebook; hand in starter.py", ".pyc": "is compiled; hand in starter.py",
            ".rar": "is a RAR archive; hand in the Python file, or a .zip",
            ".7z": "is a 7z archive; hand in the Python file, or a .zip"}


def problem_of_name(name: str) -> str:
    """Return what to say about a file that is in the right place but does not have the name of a Python file."""
    end = name[name.rfind("."):].lower() if "." in name.rpartition("/")[2] else ""
    return _BY_NAME.get(end, f"is not named like a Python file ({end or 'it has no suffix'}); hand in starter.py")


def problem_of(content: bytes) -> str:
    """Return "" for a text that Python can read, correct or not; otherwise what it is, to follow the file's name."""
    for mark, encoding in _UTF16.items():
        if content.startswith(mark):
            return f"is {encoding}; save it as UTF-8"
    for magic, what in _MAGIC.items():
        if content.startswith(magic):
            return f"contains {what}, not Python"
    text_bytes = content.removeprefix(UTF8_MARK)
    if not text_bytes.strip():
        return "is empty"
    if _is_notebook(text_bytes):
        return "contains a Jupyter notebook; hand in starter.py"
    if b"\0" in text_bytes:
        num_nul = text_bytes.count(b"\0")
        if num_nul > len(text_bytes) // 3:
            return "is UTF-16 without a byte-order mark; save it as UTF-8"
        return f"has a nul byte in line {_line(text_bytes, text_bytes.index(0))}; it is damaged, or not a text file"
    try:
        text_bytes.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = text_bytes[error.start]
        return (f"is not UTF-8 (byte 0x{byte:02x} in line {_line(text_bytes, error.start)}; in Latin-1 that is "
                f"{_in_latin1(byte)}); save it as UTF-8")
    return ""


def without_mark(content: bytes) -> bytes:
    """Return the text without the byte-order mark that some editors add."""
    return content.removeprefix(UTF8_MARK)


def _is_notebook(content: bytes) -> bool:
    if not content.lstrip().startswith(b"{"):
        return False
    try:
        notebook = json.loads(content)
        return isinstance(notebook, dict) and "cells" in notebook and "nbformat" in notebook
    except (ValueError, RecursionError):
        return b'"nbformat"' in content and b'"cells"' in content


def _line(content: bytes, offset: int) -> int:
    return content.count(b"\n", 0, offset) + 1


def _in_latin1(byte: int) -> str:
    letter = bytes([byte]).decode("latin-1")
    return letter if letter.isprintable() else "no letter either"
