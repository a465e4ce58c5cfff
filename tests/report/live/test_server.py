from __future__ import annotations

import http.client
import json
import re
import socket
import time

import pytest

from fedtern.core.errors import FedternError
from fedtern.report.live.server import LiveServer, is_loopback
from fedtern.report.live.watcher import Watcher
from report.fake_runs import METHODS, config, evaluations, write_run

STC = METHODS[0][0]


@pytest.fixture
def runs(tmp_path):
    return write_run(tmp_path / "run", config(STC), evaluations(STC, 0))


CONNECTIONS: list[http.client.HTTPConnection] = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while CONNECTIONS:
        CONNECTIONS.pop().close()


def get(server, path="/", headers=None, method="GET"):
    CONNECTIONS.append(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10))
    CONNECTIONS[-1].request(method, path, headers=headers or {})
    return CONNECTIONS[-1].getresponse()


def next_event(answer):
    lines = []
    while line := answer.readline().decode().strip():
        lines.append(line)
    fields = dict(line.split(": ", 1) for line in lines)
    return fields["event"], json.loads(fields["data"])


def test_the_page_is_self_contained_and_its_policy_names_its_scripts(runs):
    with LiveServer(Watcher([runs])) as server:
        answer = get(server)
        page = answer.read().decode()
    assert answer.status == 200
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    nonces = set(re.findall(r'nonce="([^"]+)"', page))
    assert len(nonces) == 1
    policy = answer.headers["Content-Security-Policy"]
    assert f"script-src 'nonce-{nonces.pop()}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"@\w+@", page)


def test_the_stream_sends_all_runs_then_changes_then_the_end(runs):
    measured = evaluations(STC, 0)
    with LiveServer(Watcher([runs], interval=0.02)) as server:
        answer = get(server, "/events")
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert next_event(answer)[0] == "hello"
        name, first = next_event(answer)
        assert (name, first["id"], len(first["rows"])) == ("run", str(runs), len(measured))
        with (runs / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**measured[-1], "iteration": 9999}) + "\n")
        name, second = next_event(answer)
        assert (name, second["rows"][0][0]) == ("run", 9999)
    assert next_event(answer) == ("end", {})


def test_an_address_that_others_can_reach_needs_a_token(runs):
    with pytest.raises(FedternError, match=r"0\.0\.0\.0 is not a loopback address"):
        LiveServer(Watcher([runs]), "0.0.0.0")


def test_pages_and_streams_need_the_token(runs):
    with LiveServer(Watcher([runs]), token="secret") as server:
        for path in ("/", "/events", "/?token=wrong", "/events?token="):
            assert get(server, path).status == 401
        for cookie in ("fedtern_watch=wrong", "fedtern_watch=", "a b c;=", "fedtern_watch=s\xe9"):
            assert get(server, "/", {"Cookie": cookie}).status == 401
        answer = get(server, "/?token=secret")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert get(server, "/", {"Cookie": cookie.partition(";")[0]}).status == 200


def test_without_a_token_other_host_names_are_refused(runs):
    # A web page whose name resolves to 127.0.0.1 must not read the runs.
    with LiveServer(Watcher([runs])) as server:
        assert get(server, "/", {"Host": "evil.example"}).status == 403
        assert get(server, "/events", {"Host": "evil.example:80"}).status == 403
        for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
            assert get(server, "/", {"Host": host}).status == 200


def test_unknown_paths_and_methods_are_refused(runs):
    with LiveServer(Watcher([runs])) as server:
        assert get(server, "/../config.json").status == 404
        assert get(server, "/", method="POST").status == 501


def test_a_port_in_use_is_an_error(runs):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FedternError, match=f"Cannot serve the live page on 127.0.0.1:{port}"):
            LiveServer(Watcher([runs]), port=port)


def test_the_number_of_streams_is_limited_and_closed_pages_free_theirs(runs, monkeypatch):
    monkeypatch.setattr("fedtern.report.live.server._MOST_STREAMS", 3)
    with LiveServer(Watcher([runs], interval=0.01)) as server:
        streams = [get(server, "/events") for _ in range(4)]
        assert [answer.status for answer in streams] == [200, 200, 200, 503]
        for answer in streams:
            answer.close()
        while CONNECTIONS:
            CONNECTIONS.pop().close()
        deadline = time.monotonic() + 20
        while server.open_streams and time.monotonic() < deadline:
            # The server notices a closed page when it writes to it.
            with (runs / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(evaluations(STC, 0)[-1]) + "\n")
            time.sleep(0.02)
        assert server.open_streams == 0


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.9", True), ("::1", True), ("10.0.0.1", False), ("", False)]
)
def test_loopback_addresses(host, expected):
    assert is_loopback(host) is expected
