"""Messages between the apps, and the specs of federations and methods in them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")

from hypothesis import given
from hypothesis import strategies as st

from fedtern import METHODS, Layout, register_method, stc
from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.methods import Method, MethodSpec, method_from_spec
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import (
    Answer,
    AnswerKind,
    Handshake,
    ProtocolMismatch,
    RoundRequest,
    read_answer,
    read_request,
)

NAMES = st.text(max_size=40)
IDS = st.integers(0, 2**32)


def test_bytes_are_stable():
    golden = {
        "fd0202020366656400ac027879": RoundRequest("fed", False, True, 300, b"xy"),
        "fd020207036665640007": RoundRequest("fed", True, True, 7, b"", True),
        "fd02020803666564016107": RoundRequest(
            "fed", False, False, 7, b"", arrays_key="a", attached=True
        ),
        "fd02100306616263": Answer(AnswerKind.STATUS, 2, 5, b"abc"),
        "fd021003066162636d61726b": Answer(AnswerKind.STATUS, 2, 5, b"abc", b"mark"),
        "fd021103066162630001617879": Answer(
            AnswerKind.UPLOAD, 2, 5, b"abc", b"xy", arrays_key="a"
        ),
        "fd02110306616263080161": Answer(
            AnswerKind.UPLOAD, 2, 5, b"abc", arrays_key="a", attached=True
        ),
        "fd02150306616263000161": Answer(AnswerKind.EVALUATED, 2, 5, b"abc", arrays_key="a"),
        "fd021405302e312e306e6f": Answer(AnswerKind.REFUSED, reason="no", version="0.1.0"),
    }
    for expected, message in golden.items():
        assert message.to_bytes().hex() == expected


def test_numbers_of_answers_are_stable():
    numbers = {kind.name: kind.value for kind in AnswerKind}
    assert numbers == {
        "STATUS": 16,
        "UPLOAD": 17,
        "NOT_READY": 18,
        "FAILED": 19,
        "REFUSED": 20,
        "EVALUATED": 21,
    }


@given(NAMES, st.booleans(), st.booleans(), IDS, st.binary(max_size=50), st.booleans())
def test_round_request_round_trips(name, in_context, discard_state, client, data, renumbered):
    request = RoundRequest(name, in_context, discard_state, client, data, renumbered)
    assert read_request(request.to_bytes()) == request


@given(st.none() | IDS, st.integers(-1, 2**31), st.binary(min_size=3, max_size=3), st.text())
def test_answer_round_trips(client, round, stamp, text):
    for kind in (AnswerKind.NOT_READY, AnswerKind.FAILED):
        answer = Answer(kind, client, round, stamp, reason=text)
        assert read_answer(answer.to_bytes()) == answer
    for kind in (AnswerKind.STATUS, AnswerKind.UPLOAD):
        answer = Answer(kind, client, round, stamp, data=text.encode())
        assert read_answer(answer.to_bytes()) == answer


@given(st.binary(max_size=60))
def test_garbage_raises_only_decode_and_protocol_errors(data):
    for read in (read_request, read_answer):
        for prefix in (
            b"",
            b"\xfd\x02",
            b"\xfd\x02\x01",
            b"\xfd\x02\x02",
            b"\xfd\x02\x11",
            b"\xfd\x01",
        ):
            with suppress(DecodeError, RemoteProtocolError):
                read(prefix + data)


def test_bytes_that_are_no_request_raise():
    with pytest.raises(DecodeError, match="messages of kind 16"):
        read_request(Answer(AnswerKind.STATUS).to_bytes())
    with pytest.raises(DecodeError, match="not JSON"):
        read_request(Handshake("1", {}).to_bytes() + b"{")
    with pytest.raises(DecodeError, match="JSON object"):
        read_request(Handshake("1", []).to_bytes())
    with pytest.raises(ProtocolMismatch, match=r"fedtern 7\.0 and speaks protocol 9"):
        read_request(b"\xfd\x09\x01\x037.0")
    with pytest.raises(ProtocolMismatch, match="of another version"):
        read_request(b"\xfd\x09\x02")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_the_method_of_its_spec(name):
    method = METHODS[name]()
    spec = MethodSpec.from_json(json.loads(method.spec.to_text()))
    assert method_from_spec(spec) == method
    assert method_from_spec(spec).digest == method.digest


def test_federation_spec_round_trips():
    spec = FederationSpec("fed", stc(), Layout(("a", "b"), ((2, 3), ())), 5, "arrays", True)
    assert FederationSpec.from_json(spec.to_json()) == spec
    assert spec.difference(spec) is None


def test_federation_spec_with_another_method_digest_raises():
    spec = FederationSpec("fed", stc(), Layout(("a",), ((2, 3),)), 5, "arrays", True)
    forged = spec.to_json() | {"method_digest": "000000"}
    with pytest.raises(ValueError, match="has digest 000000, here it has digest"):
        FederationSpec.from_json(forged)


def test_method_spec_without_a_method_raises():
    spec = stc().spec.to_json()
    with pytest.raises(ValueError, match=r"Unknown method 'std'\. Did you mean 'stc'"):
        method_from_spec(MethodSpec.from_json(spec | {"name": "std"}))
    with pytest.raises(ValueError, match="has version 1 here, the peer uses version 2"):
        method_from_spec(MethodSpec.from_json(spec | {"version": 2}))
    with pytest.raises(ValueError, match=r"'stc' cannot be made here: .* argument 'q'"):
        method_from_spec(MethodSpec.from_json(spec | {"parameters": {"q": 1}}))
    with pytest.raises(ValueError, match="The method has no name; register it"):
        method_from_spec(Method(stc().up, stc().down, 1, stc().aggregate).spec)
    for bad in (
        [],
        spec | {"name": 3},
        spec | {"version": "1"},
        spec | {"parameters": None},
        spec | {"parameters": {"p_up": {"type": "subprocess:Popen"}}},
    ):
        with pytest.raises(ValueError, match=r"A method spec|Method 'stc' needs|Parameter p_up"):
            MethodSpec.from_json(bad)


def test_registered_method_is_found_by_its_name(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", stc)

    @register_method("mine", version=3, replace=True)
    def any_python_name(p: float = 1 / 3) -> Method:
        return stc(p)

    assert any_python_name(0.5).spec == MethodSpec("mine", 3, {"p": 0.5})
    assert method_from_spec(any_python_name(0.5).spec) == any_python_name(0.5)
