"""Does the server answer its page, and no one else?"""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perfeds2.http_server import MOST_CLIENTS
from perfeds2.play.knobs import KNOBS
from perfeds2.play.server import MOST_BODY, Playground, PlayServer

JSON = {"Content-Type": "application/json"}


class Told(Playground):
    """Hears what is asked, and plays nothing."""

    def __init__(self) -> None:
        super().__init__(KNOBS)
        self.heard: list[str] = []

    def rounds(self, asked):
        self.heard.append("rounds")
        return {"asked": sorted(asked)}

    def train(self, asked):
        self.heard.append("train")
        return {"number": len(asked)}

    def stop(self, _):
        self.heard.append("stop")
        return {}


@pytest.fixture
def server() -> Iterator[PlayServer]:
    with PlayServer(Told()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, method="GET", path="", body=b"", headers=None, host=None):
    """Status, headers and text; the path goes behind the secret unless it begins with a slash."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    path = path if path.startswith("/") else f"/{server.token}/{path}"
    connection.putrequest(method, path, skip_host=True)
    for value in [f"127.0.0.1:{server.server_port}"] if host is None else host:
        connection.putheader("Host", value)
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    if method == "POST" and "Content-Length" not in (headers or {}) and "Transfer-Encoding" not in (headers or {}):
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, dict(reply.getheaders()), text


def test_it_listens_on_this_machine_only_with_a_new_secret_each_time(server):
    assert server.server_address[0] == "127.0.0.1"
    with PlayServer(Told()) as other:
        assert other.token != server.token
    assert len(server.token) >= 32


def test_the_page_comes_with_rules_that_let_nothing_in(server):
    status, headers, page = ask(server)
    assert status == 200
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page
    assert "script-src 'sha256-" in page
    assert server.token not in page


def test_its_own_page_is_answered(server):
    own = {"Origin": f"http://127.0.0.1:{server.server_port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(server, "POST", "rounds", b"{}", JSON | own)[0] == 200
    assert ask(server, "POST", "train", b'{"knobs": {}}', JSON | own)[0] == 200
    assert ask(server, host=[f"LOCALHOST:{server.server_port}"])[0] == 200
    assert server.playground.heard == ["rounds", "train"]


@pytest.mark.parametrize("path", ["/", "/training", "/rounds", "/x/rounds", "//rounds", "/%2e%2e/", "/{short}/train"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_the_secret_nothing_is_answered(server, method, path):
    status, _, text = ask(server, method, path.format(short=server.token[:-1]), b"{}", JSON)
    assert status == 403
    assert server.token not in text
    assert server.playground.heard == []


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:{port}"],
        ["127.0.0.1"],
        ["127.0.0.1:{port}", "evil.example"],
        [],
        ["127.0.0.1:{port}.evil.example"],
        ["[::1]:{port}"],
    ],
)
def test_a_name_that_was_bound_to_this_machine_by_someone_else_is_refused(server, hosts):
    """DNS rebinding: the browser takes evil.example for the page's origin, and sends its name."""
    hosts = [host.format(port=server.server_port) for host in hosts]
    for method, path in (("GET", ""), ("POST", "train")):
        assert ask(server, method, path, b"{}", JSON, hosts)[0] == 403
    assert server.playground.heard == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_another_page_that_knows_the_secret_cannot_post(server, headers):
    for path in ("train", "stop", "rounds"):
        assert ask(server, "POST", path, b"{}", JSON | headers)[0] == 403
    assert server.playground.heard == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_a_form_can_send_is_refused(server, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    assert ask(server, "POST", "train", b'{"knobs": {}}', headers)[0] == 415
    assert server.playground.heard == []


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {"Content-Length": str(MOST_BODY + 1)}, 413),
        (b"", {"Content-Length": str(10**8)}, 413),
        (b"", {"Content-Length": "9" * 5000}, 411),
        (b"", {"Content-Length": "-1"}, 411),
        (b"", {"Content-Length": "0x10"}, 411),
        (b"2\r\n{}\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"}, 411),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 10_000, {}, 400),
        (b'{"a":' * 3_000, {}, 400),
    ],
)
def test_bodies_are_small_tables_or_refused(server, body, headers, status):
    assert ask(server, "POST", "rounds", body, JSON | headers)[0] == status
    assert server.playground.heard == []
    assert ask(server, "POST", "rounds", b"{}", JSON)[0] == 200  # and it goes on


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"])
def test_other_methods_are_none(server, method):
    status, headers, _ = ask(server, method)
    assert status in (403, 501)
    assert "Access-Control-Allow-Origin" not in headers


def test_a_long_address_is_refused(server):
    assert ask(server, path="x" * 5_000)[0] == 414
    assert ask(server, path="x" * 70_000)[0] == 414
    assert ask(server, path="nothing")[0] == 404


def test_others_are_answered_beside_many_silent_connections(server):
    silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(MOST_CLIENTS + 8)]
    assert ask(server)[0] == 200
    for each in silent:
        each.close()


def test_nothing_of_ours_is_logged(server, capfd):
    ask(server)
    ask(server, "POST", "rounds", b"{", JSON)
    said = capfd.readouterr()
    assert said.out == said.err == ""


def test_a_knob_that_names_a_file_runs_no_file(tmp_path: Path, monkeypatch):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef policy(uplink): pass\n")
    monkeypatch.chdir(tmp_path)
    with PlayServer(Playground(KNOBS)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        body = json.dumps({"knobs": {"bandwidth": "evil.py:policy"}}).encode()
        for path in ("rounds", "train"):
            status, _, text = ask(server, "POST", path, body, JSON)
            assert status == 400
            assert "bandwidth cannot be" in json.loads(text)["sentence"]
        server.shutdown()
        thread.join()
    assert not (tmp_path / "ran").exists()


def test_the_address_is_one_that_a_browser_takes(server):
    split = urlsplit(server.url)
    assert (split.hostname, split.port) == ("127.0.0.1", server.server_port)
    assert split.path == f"/{server.token}/"


def test_a_port_that_is_taken_is_said_in_a_sentence(server):
    from command_line import told

    status, _, said = told("play", "--no-open", "--port", server.server_port)
    assert status == 2
    assert f"--port {server.server_port} cannot be used" in said
