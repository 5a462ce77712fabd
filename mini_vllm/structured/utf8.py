"""Characters as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mini_vllm.structured.regex_tree import Range


def utf8_sequences(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Yield the UTF-8 encodings of ranges of characters, as sequences of ranges of bytes.

        U+00E0 … U+00FF   ─▶   [C3] [A0…BF]
        U+0000 … U+07FF   ─▶   [00…7F]   and   [C2…DF] [80…BF]
    """
    for first, last in ranges:
        for end in (0x7F, 0x7FF, 0xFFFF, 0x10FFFF):
            if first <= min(end, last):
                yield from _same_length(list(chr(first).encode()), list(chr(min(end, last)).encode()))
                first = end + 1


def _same_length(first: list[int], last: list[int]) -> Iterator[list[Range]]:
    """Yield the sequences from ``first`` to ``last``, which have the same length."""
    if len(first) == 1:
        yield [(first[0], last[0])]
        return
    lowest, highest = [0x80] * (len(first) - 1), [0xBF] * (len(first) - 1)
    start, stop = first[0], last[0]
    if start == stop:
        yield from ([(start, start), *rest] for rest in _same_length(first[1:], last[1:]))
        return
    if first[1:] != lowest:
        yield from ([(start, start), *rest] for rest in _same_length(first[1:], highest))
        start += 1
    if last[1:] != highest:
        stop -= 1
    if start <= stop:
        yield [(start, stop), *[(0x80, 0xBF)] * len(lowest)]
    if last[1:] != highest:
        yield from ([(last[0], last[0]), *rest] for rest in _same_length(lowest, last[1:]))
