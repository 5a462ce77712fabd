"""The checks of every request, before anything else is done with it.

    Host      must be an address, localhost, or a configured name of this server: a foreign site whose name was made to
              point here (DNS rebinding) sends its own name
    Origin    must be this server, if present: a foreign page may not send requests from a visitor's browser
    site      must be this one, if the browser names the site that a request comes from; links to the page are allowed
    type      a body must be application/json, which a form on a foreign page cannot send
    body      is allowed only in POST, PUT and PATCH requests, and its length must be given only once (Content-Length or
              Transfer-Encoding, not both): the server does not read any other body
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from mini_vllm.server.errors import ApiError

WITH_BODY = ("POST", "PUT", "PATCH")
#: The page's files, which contain no user's data.
PAGE = "/live/page/"
#: A Host is a name or an address, and perhaps a port. A URL parser would also find our address in foreign hosts such as
#: ``evil.example@127.0.0.1``.
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z._-]+))(?::[0-9]{1,5})?", re.ASCII)


class Guard:
    """The outermost ASGI middleware."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        """Accept requests to ``hosts``, the names of this server."""
        self.app = app
        self.hosts = frozenset({"localhost", *(host.lower() for host in hosts)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            self._check_host(headers.get(b"host", ""))
            _check_origin(headers.get(b"origin"), headers.get(b"host", ""))
            if not scope["path"].startswith(PAGE) and scope["path"] != "/":
                _check_site(headers.get(b"sec-fetch-site"))
            if scope["method"] in WITH_BODY:
                _check_type(headers.get(b"content-type", ""))
            _check_body(scope["method"], headers.get(b"content-length"), headers.get(b"transfer-encoding"))
        except ApiError as error:
            return await error.to_response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        found = HOST.fullmatch(host.lower())
        name = "" if found is None else found[1] or found[2]
        if name not in self.hosts and not _is_address(name):
            raise ApiError(403, f"Host is {host[:100]!r}, which is not a name of this server; its operator can add "
                           "names with --allow-host", code="host_not_allowed")


def _check_origin(origin: str | None, host: str) -> None:
    if origin is None:
        return
    if origin.partition("://")[2] != host or urlsplit(origin).scheme not in ("http", "https"):
        raise ApiError(403, f"Origin is {origin[:100]!r}, which is not this server: pages of other sites may not send "
                       "requests here", code="origin_not_allowed")


def _check_site(site: str | None) -> None:
    """Raise ApiError for requests from other sites: a foreign page requests images and scripts without an Origin."""
    if site not in (None, "same-origin", "none"):
        raise ApiError(403, f"Sec-Fetch-Site is {site[:100]!r}: pages of other sites may not send requests here",
                       code="origin_not_allowed")


def _check_type(content_type: str) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, f"Content-Type is {content_type[:100]!r}, must be application/json", code="not_json")


def _check_body(method: str, length: str | None, encoding: str | None) -> None:
    """Raise ApiError for a body that is not allowed. It is not read; the connection is closed."""
    if length is not None and encoding is not None:
        raise ApiError(400, "Content-Length and Transfer-Encoding are both present; send only one of them",
                       code="two_lengths", headers={"Connection": "close"})
    if method not in WITH_BODY and (encoding is not None or length not in (None, "0")):
        raise ApiError(400, f"{method[:20]} takes no body here", code="body_not_allowed",
                       headers={"Connection": "close"})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
