"""What is checked of every request before anything is made of it.

    Host      an address, localhost, or a name this server was told: a page of a stranger whose name was made to point
              here (DNS rebinding) sends its own name
    Origin    if there is one, this server itself: the page of a stranger may not send requests from a visitor's browser
    site      if a browser says which site a request comes from, this one; a link to the page may be anywhere
    type      a body is application/json: what a form of a stranger's page can send is not
    body      only where the method takes one, and of one length: nobody reads any other
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from mini_vllm.server.errors import ApiError

WITH_BODY = ("POST", "PUT", "PATCH")
#: The page's files, which hold nothing of anybody.
PAGE = "/live/page/"
#: A Host is a name or an address, and perhaps a port. A URL parser would find a name of ours in others, too:
#: ``evil.example@127.0.0.1``.
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z._-]+))(?::[0-9]{1,5})?", re.ASCII)


class Guard:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        """``hosts`` are the names by which this server may be called."""
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
            raise ApiError(403, f"Host is {host[:100]!r}, which is not a name of this server; who runs it can add one "
                           "with --allow-host", code="host_not_allowed")


def _check_origin(origin: str | None, host: str) -> None:
    if origin is None:
        return
    if origin.partition("://")[2] != host or urlsplit(origin).scheme not in ("http", "https"):
        raise ApiError(403, f"Origin is {origin[:100]!r}, which is not this server: pages of others may not send "
                       "requests here", code="origin_not_allowed")


def _check_site(site: str | None) -> None:
    """A picture or a script on the page of a stranger is asked for without an Origin."""
    if site not in (None, "same-origin", "none"):
        raise ApiError(403, f"Sec-Fetch-Site is {site[:100]!r}: pages of others may not send requests here",
                       code="origin_not_allowed")


def _check_type(content_type: str) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, f"Content-Type is {content_type[:100]!r}, must be application/json", code="not_json")


def _check_body(method: str, length: str | None, encoding: str | None) -> None:
    """A body that is refused here is not read: the connection is closed."""
    if length is not None and encoding is not None:
        raise ApiError(400, "Content-Length and Transfer-Encoding are both there; send one of them",
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
