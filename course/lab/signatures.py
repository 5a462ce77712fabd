"""Check whether a piece of the engine can be called like the lab's piece."""

from __future__ import annotations

import ast


def extends(engine: str, lab: str) -> bool:
    """Check whether the signature ``engine`` equals ``lab`` except for additional optional parameters and defaults.

    Both are written as by ``starters.declarations``: ``(a: int, b: int=1)``, for a class ``(a: int; b: int = 1)``.
    """
    engine_positional, engine_by_name = _parameters(engine)
    lab_positional, lab_by_name = _parameters(lab)
    more = engine_positional[len(lab_positional):]
    more += [parameter for parameter in engine_by_name if not any(_takes(parameter, wanted) for wanted in lab_by_name)]
    return (len(engine_positional) >= len(lab_positional)
            and all(map(_takes, engine_positional, lab_positional))
            and all(any(_takes(parameter, wanted) for parameter in engine_by_name) for wanted in lab_by_name)
            and all("=" in parameter for parameter in more))


def _takes(engine: str, lab: str) -> bool:
    """Check whether the two parameters are equal, or differ only in a default that ``engine`` adds."""
    return engine == lab or engine.startswith(f"{lab}=")


def _parameters(signature: str) -> tuple[list[str], list[str]]:
    """Return the parameters that may be passed by position and the keyword-only ones, each with its default."""
    fields_or_parameters = signature.replace("; ", ", ")
    try:
        arguments = next(node for node in ast.walk(ast.parse(f"def f{fields_or_parameters}: ..."))
                         if isinstance(node, ast.arguments))
    except SyntaxError:  # a class may declare a field without a default after one with a default
        return signature.strip("()").replace(" = ", "=").split("; "), []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    by_name = [_text(argument, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    by_name += [f"*{_text(argument, None)}" for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [_text(argument, default) for argument, default in zip(positional, defaults)], by_name


def _text(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f"={ast.unparse(default)}" if default is not None else "")
