"""The bytes between the apps, and what they may be trusted with."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: pip install 'fedtern[flower]'")

from hypothesis import given
from hypothesis import strategies as st

from fedtern import METHODS, Layout, register_method, stc
from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.methods.serialization import read_method, to_spec
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import (
    FAILED,
    HERE,
    REFUSED,
    UPLOAD,
    Answer,
    Hello,
    OtherProtocol,
    Turn,
    read_answer,
    read_request,
)

NAMES = st.text(max_size=40)
IDS = st.integers(0, 2**32)


def test_bytes_are_stable():
    assert Turn("fed", False, True, 300, b"xy").to_bytes().hex() == "fd01020203666564ac027879"
    assert Answer(HERE, 2, 5, b"abc").to_bytes().hex() == "fd01100306616263"
    assert Turn("fed", True, True, 7, b"", True).to_bytes().hex() == "fd0102070366656407"
    assert Answer(HERE, 2, 5, b"abc", b"mark").to_bytes().hex() == "fd011003066162636d61726b"
    assert Answer(REFUSED, reason="no", version="0.1.0").to_bytes().hex() == (
        "fd011405302e312e306e6f"
    )


@given(NAMES, st.booleans(), st.booleans(), IDS, st.binary(max_size=50), st.booleans())
def test_a_turn_is_read_as_it_was_written(name, in_context, fresh, client, data, renamed):
    turn = Turn(name, in_context, fresh, client, data, renamed)
    assert read_request(turn.to_bytes()) == turn


@given(st.none() | IDS, st.integers(-1, 2**31), st.binary(min_size=3, max_size=3), st.text())
def test_an_answer_is_read_as_it_was_written(client, round, stamp, text):
    failed = Answer(FAILED, client, round, stamp, reason=text)
    assert read_answer(failed.to_bytes()) == failed
    for kind in (HERE, UPLOAD):
        answer = Answer(kind, client, round, stamp, data=text.encode())
        assert read_answer(answer.to_bytes()) == answer


@given(st.binary(max_size=60))
def test_garbage_is_one_kind_of_error(data):
    for read in (read_request, read_answer):
        for prefix in (b"", b"\xfd\x01", b"\xfd\x01\x01", b"\xfd\x01\x02", b"\xfd\x02"):
            with suppress(DecodeError, RemoteProtocolError):
                read(prefix + data)


def test_what_is_not_a_request_is_refused():
    with pytest.raises(DecodeError, match="frames of kind 16"):
        read_request(Answer(HERE).to_bytes())
    with pytest.raises(DecodeError, match="not JSON"):
        read_request(Hello("1", {}).to_bytes() + b"{")
    with pytest.raises(DecodeError, match="JSON object"):
        read_request(Hello("1", []).to_bytes())
    with pytest.raises(OtherProtocol, match=r"fedtern 7\.0 and speaks protocol 9"):
        read_request(b"\xfd\x09\x01\x037.0")
    with pytest.raises(OtherProtocol, match="of another version"):
        read_request(b"\xfd\x09\x02")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_told(name):
    method = METHODS[name]()
    assert read_method(to_spec(method)) == method
    assert read_method(to_spec(method)).digest == method.digest


def test_a_charter_is_read_as_it_was_written():
    charter = FederationSpec("fed", stc(), Layout(("a", "b"), ((2, 3), ())), 5, "arrays", True)
    assert FederationSpec.from_json(charter.to_json()) == charter
    assert charter.differs(charter) is None
    forged = charter.to_json() | {"method_digest": "000000"}
    with pytest.raises(ValueError, match="digest 000000, made here it is Method"):
        FederationSpec.from_json(forged)


def test_only_parts_of_methods_can_be_named():
    for part in ("subprocess:Popen", "fedtern.store.directory:Store", "fedtern.nowhere:Thing"):
        with pytest.raises(ValueError, match="cannot be made here"):
            read_method(to_spec(stc()) | {"up": {"type": part}})
    with pytest.raises(ValueError, match="expected a method"):
        read_method(to_spec(stc())["up"])
    with pytest.raises(ValueError, match="cannot be made here"):
        read_method({"type": "fedtern.core.methods.method:Method"})


def test_a_registered_method_is_known_by_where_it_comes_from(monkeypatch):
    def mine():
        return stc(1 / 3)

    monkeypatch.setitem(METHODS, "mine", None)
    register_method(mine, replace=True)
    assert read_method(to_spec(mine())) == mine()
    with pytest.raises(ValueError, match="must be dataclasses, numbers and strings"):
        to_spec(replace(stc(), aggregate=object()))
