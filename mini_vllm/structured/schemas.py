"""What the library for JSON schemas does not do: refuse what it would silently change, and tell where an error is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

#: Keywords whose value is a schema, an object of schemas by name, or a list of schemas.
SCHEMA = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems")
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
#: Keywords whose schemas describe the same value as the schema around them.
COMBINING = ("allOf", "anyOf", "oneOf")
#: Larger whole numbers do not fit into a float.
MAX_NUMBER = 2**53
#: The schemas that are tried to find the place of an error are together at most this many times as long as the schema.
MAX_TRIED = 6


class GrammarError(ValueError):
    """A schema or a grammar that is wrong or not supported, or that became too complex along the way."""


def check_schema(schema: object) -> None:
    """Raise GrammarError for what the library would silently change or get wrong.

    It reads its own options from a schema, rounds large numbers, counts a property twice that an output has twice, and
    lets the bound of some ranges through that excludes it.
    """
    if isinstance(schema, dict) and "x-guidance" in schema:
        raise GrammarError("structured_outputs.json: x-guidance is not a keyword of JSON schemas; leave it out")
    level = [schema]
    while level:
        for each in level:
            if isinstance(each, int) and abs(each) > MAX_NUMBER:
                raise GrammarError(f"structured_outputs.json has the number {str(each)[:40]}, must be from -2 ** 53 to "
                                   "2 ** 53")
            if isinstance(each, str) and any(character < " " and character not in "\b\f\n\r\t" for character in each):
                raise GrammarError(f"structured_outputs.json has the text {each[:40]!r}, must have no control "
                                   "characters except \\b, \\f, \\n, \\r and \\t")
        level = [inner for each in level if isinstance(each, (dict, list))
                 for inner in (chain(each, each.values()) if isinstance(each, dict) else each)]
    _check_num_properties(schema)
    _check_ranges(schema)


def _check_ranges(root: object) -> None:
    """Raise GrammarError for a range from an excluded whole number, away from 0, that ends before the next one.

    In such a range, like 0 < x <= 0.5 or -1.5 <= x < -1, llguidance 1.9.1 allows the excluded number.
    """
    for bounds in _bounds_by_value(root):
        for name, excluded in bounds:
            is_least = name == "exclusiveMinimum"
            if not name.startswith("exclusive") or not excluded.is_integer() or excluded and (excluded > 0) != is_least:
                continue
            for other, end in bounds:
                distance = end - excluded if is_least else excluded - end
                if 0 < distance < 1 and other.lower().endswith("maximum" if is_least else "minimum"):
                    raise GrammarError(f"structured_outputs.json: {name} {excluded:g} with {other} {end:g} is not "
                                       "supported, because the parser would allow the excluded number: include it, or "
                                       "let the range end at a whole number")


def _bounds_by_value(root: object) -> Iterable[list[tuple[str, float]]]:
    """Return lists of bounds that may hold for the same value: those of schemas that combine or refer to each other."""
    group_of: dict[int, int] = {}

    def group(schema: object) -> int:
        key = id(schema)
        while group_of.setdefault(key, key) != key:
            group_of[key] = key = group_of[group_of[key]]
        return key

    schemas = [root]
    for each in schemas:  # it grows while it is read
        for pointer, inner in _inner_schemas(each):
            schemas.append(inner)
            if pointer.startswith(COMBINING):
                group_of[group(inner)] = group(each)
        if isinstance(each, dict) and isinstance(each.get("$ref"), str):
            group_of[group(_at(root, each["$ref"]))] = group(each)
    found: dict[int, list[tuple[str, float]]] = {}
    for each in schemas:
        if isinstance(each, dict):
            found.setdefault(group(each), []).extend(
                (name, float(each[name])) for name in BOUNDS if type(each.get(name)) in (int, float))
    return found.values()


def _at(root: object, pointer: str) -> object:
    """Return the part of ``root`` at a JSON pointer like "#/$defs/size"; None if there is none."""
    for name in pointer.removeprefix("#").split("/")[1:]:
        root = root.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _check_num_properties(schema: object) -> None:
    """Raise GrammarError if only different names would reach ``minProperties``: an output may repeat a name."""
    schemas = [schema]
    for each in schemas:  # it grows while it is read
        if isinstance(each, dict):
            fewest, required = each.get("minProperties"), each.get("required")
            most = 1 + len({name for name in required if isinstance(name, str)} if isinstance(required, list) else ())
            if isinstance(fewest, (int, float)) and fewest > most:
                raise GrammarError(f"structured_outputs.json: minProperties is {fewest}, must be at most {most}, one "
                                   "more than the number of required properties")
        schemas += [inner for _, inner in _inner_schemas(each)]


def place_of_error(problem: str, schema: object, problem_of: Callable[[object], str]) -> str:
    """Return the place in a schema that alone has the same problem, as a JSON pointer; empty for the whole schema.

    The library does not tell the place, so the schemas inside of the schema are tried one by one, deeper and deeper,
    each with the definitions that it may refer to.
    """
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema} \
        if isinstance(schema, dict) else {}
    place, num_left = "", MAX_TRIED * len(json.dumps(schema))
    while True:
        for name, inner in _inner_schemas(schema):
            num_left -= len(json.dumps(inner))
            if num_left > 0 and problem_of({**definitions, **inner}) == problem:
                place, schema = f"{place}/{name}", inner
                break
        else:
            return place


def _inner_schemas(schema: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the schemas right inside of ``schema`` that have keywords, and the rest of the pointer to each."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        inner: Iterator[tuple[str, object]] = iter(())
        if keyword in SCHEMA:
            inner = iter([(keyword, value)])
        elif keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            inner = ((f"{keyword}/{name}", each) for name, each in value.items())
        elif keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
            inner = ((f"{keyword}/{index}", each) for index, each in enumerate(value))
        yield from ((pointer, each) for pointer, each in inner if isinstance(each, dict))
