"""The page's files, by name. No path leads to any other file."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from mini_vllm.server.errors import ApiError
from mini_vllm.server.live import look, small_pool

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: All content comes from this server, and no other script runs; no other site may frame the page to hijack clicks.
HEADERS = {"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
           "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
           "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
#: Files that are generated on request.
MADE = {"palette.js": look.script, "palette.css": look.style_sheet, "small_pool.js": small_pool.script}


def page_file(name: str) -> Response | None:
    """Return the file of this name, or None if there is none."""
    if name in MADE:
        text = MADE[name]()
    elif name in {path.name for path in FOLDER.iterdir()}:
        text = (FOLDER / name).read_text(encoding="utf-8")
    else:
        return None
    return Response(text, media_type=KINDS[Path(name).suffix], headers=HEADERS)


def page_router() -> APIRouter:
    """Make the routes of the files. They are the same for all users and contain no user's data."""
    router = APIRouter(include_in_schema=False)

    @router.head("/")
    @router.get("/")
    async def page() -> Response:
        return _found("index.html")

    @router.get("/live/page/{name}")
    async def file(name: str) -> Response:
        return _found(name)

    return router


def _found(name: str) -> Response:
    response = page_file(name)
    if response is None:
        raise ApiError(404, f"the page has no file {name[:100]!r}")
    return response
