"""Print how long the notebooks took.

Together they should run in two minutes on two cores. On a busy machine they take longer; no test fails because of that.
"""

import pytest

TARGET_S = 2 * 120
_spent_s: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time per notebook, in the process that prints the summary."""
    if ".ipynb" in report.nodeid:
        name = report.nodeid.split("::")[0]
        _spent_s[name] = _spent_s.get(name, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _spent_s:
        times = ", ".join(f"{name.removeprefix('notebooks/').removesuffix('.ipynb')} {seconds:.0f} s"
                          for name, seconds in sorted(_spent_s.items()))
        total_s = sum(_spent_s.values())
        terminalreporter.write_line(f"notebooks: {total_s:.0f} s of work (target: {TARGET_S} s): {times}")
