"""The HTTP server of the page, and which requests it accepts.

It listens on loopback only. Other pages that the browser has open can reach loopback too, so every URL begins with a
secret token, the Host header must be ours (against DNS rebinding), and requests that change something must come from
our own page. A large body is refused before it is read.
"""

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from urllib.parse import SplitResult, parse_qs, urlsplit

from perfeds2.errors import InputError
from perfeds2.http_server import BoundedServer
from perfeds2.play.knobs import Answer, Keywords, Knob, read_state, same_again, settings_at
from perfeds2.play.page import served_page

OUR_SCHEME, ADDRESS = "http://", "127.0.0.1"  # traffic stays on this machine, so it needs no encryption
MOST_BODY = 16_384  # bytes
MOST_PATH = 2_048
SILENT_S = 30.0  # a connection that is silent for this long is closed
PATIENCE_S = 300.0  # for a whole request: the first one may wait for JAX
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",  # the page sets the rest
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Playground:
    """Answers the page's requests."""

    def __init__(self, knobs: Sequence[Knob], fixed: Keywords | None = None) -> None:
        from perfeds2.play.training import Trainer

        self.knobs, self.fixed = knobs, dict(fixed or {})
        self.trainer = Trainer()
        self._one_at_a_time = threading.Lock()

    def page(self) -> str:
        return served_page(self.knobs, self.fixed)

    def rounds(self, asked: Keywords) -> Answer:
        """Return the three cells with these knobs, and commands that reproduce them."""
        from perfeds2.play.rounds import play_cells

        state = read_state(asked.get("knobs", {}), self.knobs)
        with self._one_at_a_time:
            cells = play_cells(state, self.fixed, whole=asked.get("whole") is True)
        return cells | same_again(state, self.fixed)

    def train(self, asked: Keywords) -> Answer:
        state = read_state(asked.get("knobs", {}), self.knobs)
        return {"number": self.trainer.start(settings_at(state, float(state["train_s"]), self.fixed))}

    def stop(self, _: Keywords) -> Answer:
        self.trainer.stop()
        return {}

    def training(self, query: Mapping[str, list[str]]) -> Answer:
        since = query.get("since", ["0"])[0]
        return self.trainer.since(int(since) if since.isdecimal() and len(since) < 8 else 0)


class PlayServer(BoundedServer):
    """The server of a playground, on a free port unless one is given."""

    def __init__(self, playground: Playground, port: int = 0) -> None:
        self.playground, self.token = playground, secrets.token_urlsafe(24)
        super().__init__((ADDRESS, port), PlayHandler, patience_s=PATIENCE_S)

    @property
    def url(self) -> str:
        return f"{OUR_SCHEME}{ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"


class PlayHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: PlayServer
    timeout = SILENT_S
    server_version, sys_version = "perfeds2", ""

    def do_GET(self) -> None:
        ground = self.server.playground
        if (path := self._allowed()) is None:
            return
        if path.path == "":
            self._send(HTTPStatus.OK, ground.page().encode(), "text/html; charset=utf-8")
        elif path.path == "training":
            self._answer(lambda: ground.training(parse_qs(path.query)))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page.")

    def do_POST(self) -> None:
        ground = self.server.playground
        asked: dict[str, Callable[[Keywords], Answer]] = {
            "rounds": ground.rounds,
            "train": ground.train,
            "stop": ground.stop,
        }
        if (path := self._allowed()) is None or (body := self._body()) is None:
            return
        if path.path in asked:
            self._answer(lambda: asked[path.path](body))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page.")

    def _allowed(self) -> SplitResult | None:
        """Return the URL behind the token if the request is allowed; otherwise refuse it and return None."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return self._refuse(HTTPStatus.FORBIDDEN, "the Host header does not name this server.")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "same-origin")
        foreign = origin is not None and origin.lower() not in {f"{OUR_SCHEME}{host}" for host in self.server.hosts}
        if foreign or (self.command != "GET" and site != "same-origin"):
            return self._refuse(HTTPStatus.FORBIDDEN, "requests from other pages are not allowed.")
        if len(self.path) > MOST_PATH:
            return self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long.")
        split = urlsplit(self.path)
        _, token, *rest = [*split.path.split("/"), ""]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()) or not rest:
            return self._refuse(HTTPStatus.FORBIDDEN, "use the address that perfeds2 play printed.")
        return split._replace(path="/".join(rest).rstrip("/"))

    def _body(self) -> Keywords | None:
        """Return the JSON object in the body; refuse the request and return None if it is too large or invalid."""
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json":
            return self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON.")
        if not length.isdecimal() or len(length) > 9 or "Transfer-Encoding" in self.headers:
            return self._refuse(HTTPStatus.LENGTH_REQUIRED, "a Content-Length header is required.")
        if int(length) > MOST_BODY:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have at most {MOST_BODY} bytes.")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            body = None
        return (
            body if isinstance(body, dict) else self._refuse(HTTPStatus.BAD_REQUEST, "the body must be a JSON object.")
        )

    def _answer(self, make: Callable[[], Answer]) -> None:
        try:
            status, made = HTTPStatus.OK, make()
        except InputError as error:
            status, made = HTTPStatus.BAD_REQUEST, {"sentence": str(error)}
        except Exception as error:
            status, made = HTTPStatus.INTERNAL_SERVER_ERROR, {"sentence": f"{type(error).__name__}: {error}"}
        text = json.dumps(made, separators=(",", ":"), allow_nan=False)
        self._send(status, text.encode(), "application/json")

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Send the reason. The body of the request is not read."""
        self._send(status, json.dumps({"sentence": sentence}).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send the errors of http.server in our format and with our headers."""
        self._refuse(HTTPStatus(code), f"{HTTPStatus(code).phrase.lower()}.")

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        """Log nothing, because URLs contain the secret token."""
