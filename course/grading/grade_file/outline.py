"""The names that a file defines, from its syntax tree. This is a separate program, because a file can be made to
crash the parser: it reads the text from standard input, and writes JSON."""

import ast
import json
import resource
import sys

MAX_CPU_S, MAX_MEMORY_BYTES = 5, 1 << 30


def outline(text: bytes) -> "dict[str, object]":
    """Return ``defined``: classes, functions and methods, as ``Class.method``; and ``bound``: all other names at the
    top level. If the text does not parse, return ``error`` with the reason."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return {"error": f"line {error.lineno}: {error.msg}"}
    except (ValueError, RecursionError, MemoryError) as error:
        return {"error": type(error).__name__}
    defined, bound = [], []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.append(node.name)
            defined += [f"{node.name}.{inner.name}" for inner in node.body if isinstance(node, ast.ClassDef)
                        and isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
        else:  # an assignment, an import, an if with definitions in it
            bound += [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
            bound += [inner.asname or inner.name for inner in ast.walk(node) if isinstance(inner, ast.alias)]
            bound += [inner.name for inner in ast.walk(node)
                      if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    return {"defined": defined, "bound": bound}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    json.dump(outline(sys.stdin.buffer.read()), sys.stdout)
