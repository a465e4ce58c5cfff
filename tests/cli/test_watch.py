"""``fedtern watch``."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from fedtern.cli import app


@pytest.fixture
def start(tmp_path):
    running = []

    def run(*arguments, **environment):
        command = [sys.executable, "-m", "fedtern", "watch", "--port", "0", *arguments]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        line = process.stdout.readline()
        return process, urlsplit(re.fullmatch(r"live page: (http://\S+)\n", line)[1])

    yield run
    for process in running:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def status(url, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    connection.request("GET", path)
    code = connection.getresponse().status
    connection.close()
    return code


def test_watch_serves_the_page_until_it_is_interrupted(start):
    process, url = start()
    assert status(url) == 200
    assert url.query == ""
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def test_another_address_gets_a_random_token(start):
    _, url = start("--host", "0.0.0.0")
    assert re.fullmatch(r"token=[\w-]{20,}", url.query)
    assert status(url) == 401
    assert status(url, f"/?{url.query}") == 303


def test_the_token_of_the_environment_is_used(start):
    _, url = start(FEDTERN_WATCH_TOKEN="chosen")
    assert url.query == "token=chosen"
    assert status(url) == 401


def test_the_page_of_another_command_ends_when_its_input_closes(start):
    process, _ = start("--until-stdin-closes")
    process.send_signal(signal.SIGINT)  # Ctrl-C is for the command that trains
    process.stdin.close()
    assert process.wait(20) == 0


def test_an_unusable_address_is_an_error():
    result = CliRunner().invoke(app, ["watch", "--host", "192.0.2.1", "--port", "0"])
    assert result.exit_code == 1
    assert "Cannot serve the live page on 192.0.2.1:0" in result.stderr
