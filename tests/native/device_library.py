"""The C client of ``native/device.c``, driven like the Python ``Client``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedtern import (
    Client,
    DecodeError,
    Layout,
    Method,
    MisdeliveredMessage,
    MissedRounds,
    RemoteProtocolError,
    Snapshot,
)
from fedtern.core.codecs import DenseCodec, SignsCodec, TernaryCodec
from fedtern.core.errors import LocalProtocolError, NonFiniteError
from fedtern.core.layout import Vector
from fedtern.core.protocol import Received
from fedtern.core.protocol.events import How
from fedtern.core.protocol.terms import Terms
from fedtern.core.snapshot import pack_blobs
from fedtern.core.updates.factors import matrix_shapes

NATIVE = Path(__file__).parents[2] / "native"
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

CODES = {
    "OK": 0,
    "BAD_MESSAGE": -1,
    "OTHER_VERSION": -2,
    "OTHER_LAYOUT": -3,
    "OTHER_METHOD": -4,
    "OTHER_HISTORY": -5,
    "MISSED_ROUNDS": -6,
    "UNSUPPORTED": -7,
    "ALREADY_SENT": -8,
    "NO_WEIGHTS": -9,
    "NOT_FINITE": -10,
    "NO_ROOM": -11,
    "BAD_ARGUMENT": -12,
    "MISDELIVERED": -13,
    "OLD_COPY": -14,
}
EXCEPTIONS: dict[int, type[Exception]] = {
    CODES["BAD_MESSAGE"]: DecodeError,
    CODES["OTHER_VERSION"]: DecodeError,
    CODES["OTHER_LAYOUT"]: RemoteProtocolError,
    CODES["OTHER_METHOD"]: RemoteProtocolError,
    CODES["OTHER_HISTORY"]: RemoteProtocolError,
    CODES["OLD_COPY"]: RemoteProtocolError,
    CODES["MISDELIVERED"]: MisdeliveredMessage,
    CODES["ALREADY_SENT"]: LocalProtocolError,
    CODES["NO_WEIGHTS"]: LocalProtocolError,
    CODES["NOT_FINITE"]: NonFiniteError,
}
HOW = [How.NOTHING, How.NOTICE, How.BROADCAST, How.REPLAY, How.SUM, How.MODEL, How.START]

Floats = ctypes.POINTER(ctypes.c_float)


class DeviceError(Exception):
    """A code without a counterpart among the exceptions of the Python client."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class Event(ctypes.Structure):
    """``ft_device_event``."""

    _fields_ = (
        ("since", ctypes.c_int64),
        ("round", ctypes.c_int64),
        ("leads_to", ctypes.c_int64),
        ("how", ctypes.c_uint8),
        ("counted", ctypes.c_int8),
        ("invited", ctypes.c_int8),
    )


class Tensor(ctypes.Structure):
    """``ft_device_tensor``."""

    _fields_ = (("rows", ctypes.c_uint32), ("columns", ctypes.c_uint32))


class State(ctypes.Structure):
    """``ft_device``."""

    _fields_ = (
        ("client_id", ctypes.c_uint64),
        ("p_up", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("weights", Floats),
        ("residual", Floats),
        ("base", Floats),
        ("counts", ctypes.POINTER(ctypes.c_int32)),
        ("upload", ctypes.POINTER(ctypes.c_uint8)),
        ("upload_room", ctypes.c_size_t),
        ("size", ctypes.c_uint32),
        ("method", ctypes.c_uint8),
        ("terms", ctypes.c_uint8 * 6),
        ("tensors", ctypes.POINTER(Tensor)),
        ("num_tensors", ctypes.c_uint32),
        ("stamp", ctypes.c_uint8 * 3),
        ("round", ctypes.c_int64),
        ("pending", ctypes.c_size_t),
        ("sign_updates", ctypes.c_uint32),
        ("step", ctypes.c_float),
    )


def compiler(name: str = "gcc") -> str:
    """The path of a C compiler; without one, the test is skipped."""
    if (found := shutil.which(name)) is None:
        pytest.skip(f"this machine has no {name}")
    return found


def compile_c(output: Path, *sources: str, flags: tuple[str, ...] = (), using: str = "gcc") -> Path:
    """Compile files of ``native/`` to a program, or to a library with the flag -shared."""
    command = [compiler(using), *STRICT, "-ffp-contract=off", *flags, "-o", str(output)]
    subprocess.run([*command, *(str(NATIVE / source) for source in sources)], check=True)
    return output


def load_library(directory: Path, *options: str) -> ctypes.CDLL:
    """Compile and load the C client."""
    flags = ("-O2", "-fPIC", "-shared", *options)
    path = compile_c(directory / "device.so", "device.c", flags=flags)
    library = ctypes.CDLL(str(path))
    client, size = ctypes.POINTER(State), ctypes.c_size_t
    library.ft_device_start.argtypes = [client, ctypes.c_char_p, size]
    library.ft_device_join.argtypes = [client]
    library.ft_device_receive.argtypes = [client, ctypes.c_char_p, size, ctypes.POINTER(Event)]
    library.ft_device_send.argtypes = [client, Floats]
    library.ft_device_send_delta.argtypes = [client, Floats]
    library.ft_device_pending.argtypes = [client, ctypes.POINTER(size)]
    library.ft_device_pending.restype = ctypes.POINTER(ctypes.c_uint8)
    library.ft_device_upload_room.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_double]
    library.ft_device_upload_room.restype = size
    library.ft_device_describe.restype = ctypes.c_char_p
    return library


def floats(vector: Vector) -> ctypes.Array[ctypes.c_float]:
    """A pointer to the values of a vector."""
    return vector.ctypes.data_as(Floats)


def codec_of(method: Method) -> int:
    """The number of a method in C: the codec of its uploads."""
    codec = method.up.codec
    if not isinstance(codec, DenseCodec | TernaryCodec | SignsCodec) or codec.id == 4:
        raise TypeError(f"the C client does not support {method.spec.to_text()}")
    return codec.id


class Device:
    """One C client, with the interface of the Python ``Client``."""

    def __init__(
        self,
        library: ctypes.CDLL,
        client_id: int,
        method: Method,
        layout: Layout,
        weights: Vector | None = None,
        *,
        federation: str = "",
        upload_room: int | None = None,
        residual: type[np.floating] = np.float32,
    ) -> None:
        self.library = library
        self.client_id = client_id
        self.federation = federation
        self.terms = Terms(layout, method)
        compressor = method.up.feedback.compressor
        codec = codec_of(method)
        p_up = getattr(compressor, "p", 0.0)
        size = layout.size
        room = library.ft_device_upload_room(codec, size, p_up)
        # Exactly as much as is needed: a byte more would be missing.
        self._upload = np.zeros(room if upload_room is None else upload_room, np.uint8)
        self._weights = np.zeros(size, np.float32)
        if weights is not None:
            self._weights[:] = weights
        self._residual = np.full(size, np.nan, residual)
        self._base = np.zeros(size, np.float32)
        self._counts = np.zeros(size, np.int32)
        signs = codec == SignsCodec.id
        tensors = matrix_shapes(layout)
        self.state = State(
            client_id=client_id,
            p_up=p_up,
            weights=floats(self._weights),
            residual=None if signs else floats(self._residual),
            base=floats(self._base) if signs else None,
            counts=self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)) if signs else None,
            upload=self._upload.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
            upload_room=self._upload.size,
            size=size,
            method=codec,
            terms=(ctypes.c_uint8 * 6)(*self.terms.digest),
            tensors=(Tensor * len(tensors))(*tensors),
            num_tensors=len(tensors),
        )
        if weights is None:
            self._check(library.ft_device_join(self.state))
        else:
            name = federation.encode()
            self._check(library.ft_device_start(self.state, name, len(name)))
        if signs:
            self._residual[:] = 0

    def _check(self, code: int, leads_to: int = -1) -> None:
        if code == CODES["OK"]:
            return
        text = self.library.ft_device_describe(code).decode()
        if code == CODES["MISSED_ROUNDS"]:
            raise MissedRounds(text, leads_to)
        if code in EXCEPTIONS:
            raise EXCEPTIONS[code](text)
        raise DeviceError(code, text)

    @property
    def round(self) -> int:
        return int(self.state.round)

    @property
    def stamp(self) -> bytes:
        return bytes(self.state.stamp)

    @property
    def weights(self) -> Vector:
        return self._weights

    @property
    def residual(self) -> Vector:
        return self._residual

    @property
    def pending(self) -> bytes | None:
        length = ctypes.c_size_t()
        data = self.library.ft_device_pending(self.state, length)
        return ctypes.string_at(data, length.value) if data else None

    def everything(self) -> bytes:
        """All state, to see whether anything changed."""
        vectors = (self._weights, self._residual, self._base, self._counts, self._upload)
        return bytes(self.state) + b"".join(vector.tobytes() for vector in vectors)

    def receive_code(self, data: bytes) -> tuple[int, Event]:
        """The code and the event, as they are."""
        event = Event()
        # Memory of exactly this length, so that a sanitizer sees a byte more.
        copy = ctypes.create_string_buffer(data, len(data)) if data else b""
        code = self.library.ft_device_receive(self.state, copy, len(data), event)
        return code, event

    def receive(self, data: bytes) -> Received:
        code, event = self.receive_code(data)
        self._check(code, event.leads_to)
        known = {-1: None, 0: False, 1: True}
        return Received(
            event.since,
            event.round,
            event.leads_to,
            HOW[event.how],
            known[event.counted],
            known[event.invited],
        )

    def send(self, new_weights: Vector) -> bytes:
        new = np.ascontiguousarray(new_weights, np.float32)
        self._check(self.library.ft_device_send(self.state, floats(new)))
        return self.pending or b""

    def send_delta(self, delta: Vector | None) -> bytes:
        own = None if delta is None else np.ascontiguousarray(delta, np.float32)
        pointer = None if own is None else floats(own)
        self._check(self.library.ft_device_send_delta(self.state, pointer))
        return self.pending or b""

    def restarted(self) -> Device:
        """A client with other memory that continues from this one's saved state."""
        new = Device(
            self.library,
            self.client_id,
            self.terms.method,
            self.terms.layout,
            federation=self.federation,
            upload_room=self._upload.size,
            residual=self._residual.dtype.type,
        )
        for name in ("_weights", "_residual", "_base", "_counts", "_upload"):
            getattr(new, name)[:] = getattr(self, name)
        for name in ("stamp", "round", "pending", "sign_updates", "step"):
            setattr(new.state, name, getattr(self.state, name))
        return new

    def twin(self) -> Client:
        """A Python client in the same state."""
        client = Client(
            self.client_id, self.terms.method, self.terms.layout, federation=self.federation
        )
        arrays = {
            "weights": self._weights.copy(),
            "stamp": np.frombuffer(self.stamp, np.uint8),
            **pack_blobs({"pending": [] if self.pending is None else [self.pending]}),
        }
        if codec_of(self.terms.method) != SignsCodec.id:
            arrays["feedback.residual"] = self._residual.astype(np.float32)
        elif self.state.sign_updates:
            arrays["weights"] = self._base.copy()
            arrays["votes.counts"] = self._counts.copy()
            arrays["votes.turns"] = np.array([self.state.sign_updates], np.int64)
            arrays["votes.step"] = np.array([self.state.step], np.float32)
        client.restore(Snapshot(arrays, {**client.snapshot().meta, "round": self.round}))
        return client
