"""An HTTP server for the live page: one page, and one stream of server-sent events."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
from dataclasses import asdict
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedtern.core.errors import FedternError
from fedtern.core.version import __version__
from fedtern.report.live.watcher import COLUMNS, Subscription, Watcher
from fedtern.report.styles import PHASES, UNKNOWN_PHASES, style
from fedtern.runs.units import DEFINITIONS

_COOKIE = "fedtern_watch"
_PING_SECONDS = 15.0
_SOCKET_SECONDS = 30.0
_CLOSE_SECONDS = 2.0  # for the last event of each stream
_MOST_STREAMS = 64
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}' 'unsafe-inline';"
    " img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)

_HELLO = {
    "columns": COLUMNS,
    "styles": [asdict(style(i)) for i in range(24)],
    "phases": PHASES,
    "spare": UNKNOWN_PHASES,
}


class LiveServer:
    """Serves the live page of a watcher in threads.

    Without a token, it answers only requests that name a loopback address, so that no page on the
    web can read the runs through the browser of the user.

    Args:
        watcher: The watcher; started and closed with the server.
        host: Address to bind.
        port: Port to bind; 0 chooses a free one.
        token: Password that the page needs. Required if ``host`` is not a loopback address.

    Raises:
        FedternError: The address cannot be used, or a token is missing.

    """

    def __init__(
        self, watcher: Watcher, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        if token is None and not is_loopback(host):
            raise FedternError(
                f"{host} is not a loopback address, so the live page needs a token; see --token"
            )
        self.watcher = watcher
        self.host = host
        self.token = token
        handler = type("Handler", (_Handler,), {"live": self})
        server = type("Server", (_Server,), {"address_family": _family(host)})
        try:
            self._http: ThreadingHTTPServer = server((host, port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FedternError(f"Cannot serve the live page on {host}:{port}: {reason}") from error
        self.open_streams = 0
        self.lock = threading.Lock()  # of open_streams
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Address of the page, with the token if there is one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.host in ("0.0.0.0", "::"):  # all addresses of this machine
            host = socket.gethostname()
        query = "" if self.token is None else f"?token={self.token}"
        return f"http://{host}:{self.port}/{query}"

    def __enter__(self) -> LiveServer:
        self.watcher.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Send the last changes to all pages, and close the server."""
        self.watcher.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self.open_streams and time.monotonic() < deadline:
            time.sleep(0.01)
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(18)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # browsers keep connections open
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a browser has dropped."""


class _Handler(BaseHTTPRequestHandler):
    live: LiveServer
    protocol_version = "HTTP/1.1"
    server_version = "fedtern"
    sys_version = ""
    timeout = _SOCKET_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows the progress of the training."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if not self._is_own_host():
            self._refuse(HTTPStatus.FORBIDDEN, "Open the page at a loopback address.")
        elif not self._is_authorised(url.query):
            self._refuse(
                HTTPStatus.UNAUTHORIZED,
                "A token is required: open the whole address that fedtern watch printed.",
            )
        elif url.path == "/":
            self._page(has_token="token=" in url.query)
        elif url.path == "/events":
            self._events()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _is_own_host(self) -> bool:
        if self.live.token is not None:
            return True
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return host is not None and is_loopback(host)

    def _is_authorised(self, query: str) -> bool:
        token = self.live.token
        if token is None:
            return True
        given = parse_qs(query).get("token", [])
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None:
            given.append(cookie.value)
        return any(hmac.compare_digest(each.encode(), token.encode()) for each in given)

    def _page(self, *, has_token: bool) -> None:
        if has_token and self.live.token is not None:
            # Out of the address bar and the history; the cookie is for this page only.
            self.send_response(HTTPStatus.SEE_OTHER)
            cookie = f"{_COOKIE}={self.live.token}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
            self.send_header("Location", "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        nonce = secrets.token_urlsafe(12)
        self._answer(
            HTTPStatus.OK,
            page(nonce).encode(),
            "text/html; charset=utf-8",
            {"Content-Security-Policy": _POLICY.format(nonce=nonce)},
        )

    def _events(self) -> None:
        with self.live.lock:
            is_full = self.live.open_streams >= _MOST_STREAMS
            self.live.open_streams += not is_full
        if is_full:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open.")
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self._send("hello", _HELLO)
            subscription = Subscription(self.live.watcher)
            ended = False
            while not ended:
                events = subscription.wait(_PING_SECONDS)
                for name, data in events:
                    self._send(name, data)
                    ended = ended or name == "end"
                if not events:
                    self.wfile.write(b": ping\n\n")
        except OSError:
            pass  # the page was closed
        finally:
            with self.live.lock:
                self.live.open_streams -= 1

    def _send(self, name: str, data: Any) -> None:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        self.wfile.write(f"event: {name}\ndata: {text}\n\n".encode())

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._answer(status, f"{message}\n".encode(), "text/plain; charset=utf-8", {})

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        common = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in {**common, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def page(nonce: str) -> str:
    """Return the HTML of the live page.

    Args:
        nonce: Number in the content security policy that permits the page's own script.

    """
    report = files("fedtern.report")
    text = report.joinpath("live/live.html").read_text(encoding="utf-8")
    parts = {
        "@nonce@": nonce,
        "@version@": __version__,
        "@definitions@": DEFINITIONS,
        "@css@": report.joinpath("live/live.css").read_text(encoding="utf-8"),
        "@charts@": report.joinpath("charts.js").read_text(encoding="utf-8"),
        "@js@": report.joinpath("live/live.js").read_text(encoding="utf-8"),
    }
    for name, value in parts.items():
        text = text.replace(name, value)
    return text
