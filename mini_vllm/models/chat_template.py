"""The Jinja program that comes with a chat model and writes its chats as one text."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


def compile_template(source: str) -> jinja2.Template:
    """Compile a template with what checkpoints expect: ``raise_exception``, ``strftime_now``, ``tojson`` and loop
    controls.

    It runs in a sandbox that neither reaches into Python nor changes its arguments.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols"])
    environment.globals.update(raise_exception=_raise_exception,
                               strftime_now=lambda format: datetime.now().strftime(format))
    # Jinja's own filter would write < and > as HTML escapes.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
