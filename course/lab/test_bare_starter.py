"""``course reset --bare``: signatures and invariants, without the recipe."""

import ast

import pytest

from course.lab.bare_starter import bare_starter, is_as_shipped
from course.lab.lab import discover
from course.lab.starters import declarations, shipped_starter

RECIPE = '''"""Sums.

How sums are made.
"""


def add(a: int, b: int = 1) -> int:
    """The sum of ``a`` and ``b``. First take ``a``, then count up. After: it is positive.

    Raises ValueError if one is negative; nothing is added then. Keep a tally in between.
    """
    # TASK 1: add
    return _tally(a) + b
    # END TASK


def _tally(a: int) -> int:
    """Count to ``a``."""
    # TASK 1: _tally
    return a
    # END TASK


def _given(a: int) -> int:
    """Given. Call it as often as you like."""
    return _counted(a)


def _counted(a: int) -> int:
    """Used by what is given."""
    # TASK 2: _counted
    return a
    # END TASK
'''

BARE = '''"""Sums.

How sums are made.

The invariants:

1. **Nothing** is lost.
"""


def add(a: int, b: int = 1) -> int:
    """The sum of ``a`` and ``b``. Raises ValueError if one is negative; nothing is added then."""
    raise NotImplementedError("Task 1: add")


def _given(a: int) -> int:
    """Given. Call it as often as you like."""
    return _counted(a)


def _counted(a: int) -> int:
    """Used by what is given."""
    raise NotImplementedError("Task 2: _counted")
'''


def test_a_bare_starter_says_what_and_not_how(lab1):
    lab1.solution.write_text(RECIPE)
    assert bare_starter(lab1) == BARE


def test_what_nobody_can_guess_stays(lab1):
    lab1.solution.write_text(RECIPE)
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": null, "bare": ["add: Keep a tally", "x: take"]}')
    assert "nothing is added then. Keep a tally in between." in bare_starter(lab1)
    assert "First take" not in bare_starter(lab1)


LISTED = '''"""Sums."""


def add(a: int, b: int) -> int:
    """The sum of ``a`` and ``b``.

    Count up with both hands, as far as your fingers go, and then take off your shoes and go on with your toes::

        1 2 3

    Before:
    - both are small
    After:
    - ``a`` is what it was
    - ``b`` is what it was
    Returns:
    - an int
    Raises:
    - ValueError if one of them is negative, or larger than all the fingers and toes that there are in this room, or
      else if nobody counts

    Example::

        >>> add(1, 2)
        3
    """
    # TASK 1: add
    return a + b
    # END TASK
'''

BARE_LISTED = '''def add(a: int, b: int) -> int:
    """The sum of ``a`` and ``b``. Count up with both hands, as far as your fingers go, and then take off your shoes and
    go on with your toes.

    Before:
    - both are small
    After:
    - ``b`` is what it was
    Returns:
    - an int
    Raises:
    - ValueError if one of them is negative, or larger than all the fingers and toes that there are in this room, or
      else if nobody counts
    """
    raise NotImplementedError("Task 1: add")
'''


def test_of_a_contract_in_lists_it_keeps_all_but_what_holds_afterwards(lab1):
    lab1.solution.write_text(LISTED)
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": null, "bare": ["add: ``b`` is", "add: toes"]}')
    assert bare_starter(lab1).endswith(BARE_LISTED)


def test_a_heading_with_nothing_below_it_goes_too(lab1):
    lab1.solution.write_text(RECIPE.replace("def add", "# ---- Task 1\n\ndef add").replace(
        "def _tally", "# ---- Task 2\n\n\ndef _tally").replace("def _given", "# ---- Task 3\n\ndef _given"))
    bare = bare_starter(lab1)
    assert "# ---- Task 1" in bare and "# ---- Task 2" not in bare and "# ---- Task 3\n\ndef _given" in bare


def test_a_bare_starter_that_nobody_touched_is_not_started(lab1):
    lab1.starter.write_text(bare_starter(lab1))
    assert is_as_shipped(lab1)
    lab1.starter.write_text(bare_starter(lab1) + "\n# begun")
    assert not is_as_shipped(lab1)


def docstrings_in(starter):
    return [docstring or "" for _, docstring in declarations(starter).values()]


@pytest.mark.parametrize("lab", discover(), ids=str)
def test_every_lab_has_one(lab):
    bare, shipped = bare_starter(lab), shipped_starter(lab)
    assert declarations(bare).keys() == declarations(shipped).keys(), "public names are the contract"
    assert {name: signature for name, (signature, _) in declarations(bare).items()} == {
        name: signature for name, (signature, _) in declarations(shipped).items()}
    assert max(map(len, bare.splitlines())) <= 120
    assert "The invariants:\n\n1. " in (ast.get_docstring(ast.parse(bare)) or "")
    assert sum(map(len, docstrings_in(bare))) < sum(map(len, docstrings_in(shipped))), "the recipe is still there"
