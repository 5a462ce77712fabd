"""A progress bar over requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(num_requests: int, show: bool) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to tell of requests that finished and tokens that came. With ``show`` off it does nothing."""
    if not show:
        yield lambda num_finished, num_tokens: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    with Progress(TextColumn("requests"), BarColumn(), MofNCompleteColumn(),
                  TextColumn("{task.fields[tokens]} tokens"), TimeElapsedColumn()) as bar:
        task, total = bar.add_task("", total=num_requests, tokens=0), 0

        def advance(num_finished: int, num_tokens: int) -> None:
            nonlocal total
            total += num_tokens
            bar.update(task, advance=num_finished, tokens=total)

        yield advance
