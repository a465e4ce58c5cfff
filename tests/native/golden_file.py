"""Writes the golden federations as the file that ``native/golden_file.h`` reads."""

from __future__ import annotations

import ctypes
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from device_library import CODES, Device, codec_of

from checks import METHODS, trained
from fedtern import Layout
from fedtern.core.envelope import CATCH_UP, seal
from fedtern.core.updates.factors import matrix_shapes
from fedtern.core.wire import varint

GOLDEN = json.loads((Path(__file__).parents[1] / "core" / "golden" / "v1.json").read_text())
LAYOUT = Layout(tuple(GOLDEN["layout"]["names"]), tuple(map(tuple, GOLDEN["layout"]["shapes"])))
SUPPORTED = ("sgd", "fedavg", "signsgd", "stc")
FAR = 2**40
START, JOIN, RECEIVE, SEND = range(4)


class Recorder:
    """Steps of one client, with the results that this machine gave."""

    def __init__(self, library: ctypes.CDLL, case: dict[str, Any], client_id: int) -> None:
        self.case = case
        self.start = np.float32(case["start"])
        self.method = METHODS[case["method"]]
        self.make = lambda weights: Device(
            library, client_id, self.method, LAYOUT, weights, federation=case["federation"]
        )
        self.device = self.make(self.start)
        self.client_id = client_id
        self.steps: list[bytes] = []

    def begin(self, action: int) -> None:
        self.device = self.make(self.start if action == START else None)
        self.record(action, b"", b"", CODES["OK"])

    def receive(self, data: bytes) -> None:
        code, _ = self.device.receive_code(data)
        self.record(RECEIVE, b"", data, code)

    def send(self, upload: bytes, seed: int) -> None:
        """Train and upload; the upload is the golden one."""
        new = trained(self.device, seed)
        assert self.device.send(new) == upload
        self.record(SEND, new.astype("<f4").tobytes(), upload, CODES["OK"])

    def record(self, action: int, new: bytes, data: bytes, code: int) -> None:
        device = self.device
        vectors = b"".join(v.astype("<f4").tobytes() for v in (device.weights, device.residual))
        head = bytes([action]) + new + struct.pack("<I", len(data)) + data
        self.steps.append(head + struct.pack("<iq", code, device.round) + vectors)

    def to_bytes(self) -> bytes:
        state, name = self.device.state, self.case["federation"].encode()
        head = struct.pack("<Bd", codec_of(self.method), state.p_up) + self.device.terms.digest
        tensors = matrix_shapes(LAYOUT)
        head += struct.pack("<QII", self.client_id, LAYOUT.size, len(tensors))
        head += b"".join(struct.pack("<II", *shape) for shape in tensors)
        head += struct.pack("<I", len(name)) + name
        steps = struct.pack("<I", len(self.steps)) + b"".join(self.steps)
        return head + self.start.astype("<f4").tobytes() + steps


def record(library: ctypes.CDLL, case: dict[str, Any], client_id: int) -> bytes:
    """Everything that a golden federation sends to one client, and what the client uploads."""
    recorder = Recorder(library, case, client_id)
    rounds = case["rounds"]
    broadcasts = [bytes.fromhex(recorded["broadcast"]) for recorded in rounds]
    recorder.begin(START)
    recorder.receive(broadcasts[1])  # too early
    for t, (recorded, broadcast) in enumerate(zip(rounds, broadcasts, strict=True)):
        for i, _, upload in recorded["uploads"]:
            if i == client_id:
                recorder.send(bytes.fromhex(upload), t)
        recorder.receive(broadcast[:-1] + bytes([broadcast[-1] ^ 1]))  # damaged
        recorder.receive(broadcast)
        recorder.receive(broadcast)  # repeated
    for since, data in enumerate(case["away"], start=-1):
        recorder.begin(JOIN if since < 0 else START)
        for broadcast in broadcasts[: max(since, 0)]:
            recorder.receive(broadcast)
        if since == 0:
            # Not counted: the update goes back to the residual.
            new = trained(recorder.device, 99)
            upload = recorder.device.send(new)
            recorder.record(SEND, new.astype("<f4").tobytes(), upload, CODES["OK"])
        recorder.receive(bytes.fromhex(data))
    recorder.begin(START)
    recorder.receive(bytes.fromhex(case["replay"]))
    for payload in GOLDEN["payloads"]:
        data = bytes.fromhex(payload["hex"])
        if data[0] in (6, 7):
            recorder.begin(START)
            head = recorder.device.terms.header(recorder.device.stamp, 3)
            recorder.receive(seal(CATCH_UP, head + varint(8 * 3 + 1) + b"abc" + data))
    if case is GOLDEN["federations"][0]:
        for notice in [*GOLDEN["calls"], *GOLDEN["refused_calls"]]:
            recorder.begin(START)
            for broadcast in broadcasts[: notice.get("round", 0)]:
                recorder.receive(broadcast)
            recorder.receive(bytes.fromhex(notice["hex"]))
    return recorder.to_bytes()


def record_initial(library: ctypes.CDLL, case: dict[str, Any]) -> bytes:
    """What a federation with a rounded initial model sends to a client without weights."""
    recorder = Recorder(library, case, 1)
    broadcasts = [bytes.fromhex(recorded["broadcast"]) for recorded in case["rounds"]]
    for round, data in enumerate(case["joins"]):
        recorder.begin(JOIN)
        for message in (bytes.fromhex(data), *broadcasts[round:]):
            recorder.receive(message)
    for data in GOLDEN["initial_replays"][GOLDEN["initial"].index(case)]:
        recorder.begin(JOIN)
        recorder.receive(bytes.fromhex(data))
    recorder.begin(JOIN)
    for refused in [*GOLDEN["refused_initial"], *GOLDEN["refused_initial_replays"]]:
        recorder.receive(bytes.fromhex(refused["hex"]))
    return recorder.to_bytes()


def write_golden_file(path: Path, library: ctypes.CDLL) -> Path:
    """Write the golden federations of all supported methods, as seen by three clients each."""
    cases = [
        record(library, case, client_id)
        for case in GOLDEN["federations"]
        if case["method"] in SUPPORTED
        for client_id in (300, 1, FAR)
    ]
    cases += [record_initial(library, case) for case in GOLDEN["initial"]]
    path.write_bytes(b"FTGOLD1\n" + struct.pack("<I", len(cases)) + b"".join(cases))
    return path
