"""Airtime and energy of a round on LoRaWAN, NB-IoT and Bluetooth Low Energy, by formulas.

`python benchmarks/airtime.py` prints tables in Markdown: how long the radio of a client sends its
upload and receives the broadcast, and how much energy that takes. The lengths of the messages are
those of a real server and its clients; everything else is computed, not measured.
`--page FILE` replaces the tables in a page, between two comments.

Currents, powers and rates are typical values; replace them by those of your radio. Sources:

- LoRa: time on air by Semtech's AN1200.13 (LoRa Modem Designer's Guide), section 4. LoRaWAN: 13
  bytes of framing and the largest payloads of EU868 by the LoRaWAN Regional Parameters (RP002).
  Duty cycles by ETSI EN 300 220: 1 % for a device on the default channels, 10 % for a gateway on
  869.525 MHz. Radio: Semtech SX1261 at 14 dBm, 3.3 V with its DC-DC converter (data sheet).
- NB-IoT: sustained rates of category NB1 in good coverage, without repetitions; powers for 23 dBm
  after the power model of 3GPP TR 45.820.
- Bluetooth: packets of the LE 1M PHY with the largest payload (Core Specification, vol. 6, part B).
  Radio: Nordic nRF52832 at 0 dBm, 3 V with its DC-DC converter (product specification v1.1).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtern import Client, Layout, Method, Server, sgd, stc

BEGIN, END = "<!-- airtime: begin -->\n", "<!-- airtime: end -->"
COHORT = 10


@dataclass(frozen=True)
class Transfer:
    """A message on its way over one link.

    Attributes:
        frames: the number of frames that hold the message.
        airtime: seconds in which the frames are on air.
        seconds: shortest time for the whole transfer, with pauses.
        joules: energy of the device's radio.

    """

    frames: int
    airtime: float
    seconds: float
    joules: float


@dataclass(frozen=True)
class LoRaWan:
    """LoRaWAN in EU868, 125 kHz. Uplinks as class A, broadcasts as class C multicast."""

    spreading_factor: int
    payload: int  # largest number of bytes in a frame

    framing = 13  # MHDR, DevAddr, FCtrl, FCnt, FPort, MIC
    fragment_header = 2  # number of the fragment
    send_watts = 0.0255 * 3.3
    receive_watts = 0.0046 * 3.3
    device_duty_cycle = 0.01
    gateway_duty_cycle = 0.10

    @property
    def name(self) -> str:
        return f"LoRaWAN SF{self.spreading_factor}"

    def time_on_air(self, nbytes: int, crc: bool = True) -> float:
        """Seconds of a frame with explicit header, coding rate 4/5 and eight preamble symbols."""
        sf = self.spreading_factor
        symbol = (1 << sf) / 125_000
        slow = symbol > 0.016  # low data rate optimization
        bits = 8 * nbytes - 4 * sf + 28 + 16 * crc
        symbols = 8 + max(math.ceil(bits / (4 * (sf - 2 * slow))) * 5, 0)
        return (8 + 4.25 + symbols) * symbol

    def up(self, nbytes: int) -> Transfer:
        frames, airtime = self._frames(nbytes, crc=True)
        seconds = airtime / self.device_duty_cycle
        return Transfer(frames, airtime, seconds, airtime * self.send_watts)

    def down(self, nbytes: int) -> Transfer:
        frames, airtime = self._frames(nbytes, crc=False)
        seconds = airtime / self.gateway_duty_cycle
        return Transfer(frames, airtime, seconds, airtime * self.receive_watts)

    def _frames(self, nbytes: int, crc: bool) -> tuple[int, float]:
        room = self.payload - self.fragment_header
        full, rest = divmod(nbytes, room)
        lengths = [room] * full + [rest] * (rest > 0)
        overhead = self.framing + self.fragment_header
        return len(lengths), sum(self.time_on_air(length + overhead, crc) for length in lengths)


@dataclass(frozen=True)
class NbIot:
    """NB-IoT, category NB1, single tone of 15 kHz, UDP over IPv4; only the data itself."""

    name = "NB-IoT"
    header = 28  # IPv4 and UDP
    datagram = 1358
    up_rate = 16_900  # bits per second
    down_rate = 25_500
    send_watts = 0.545
    receive_watts = 0.090

    def up(self, nbytes: int) -> Transfer:
        return self._transfer(nbytes, self.up_rate, self.send_watts)

    def down(self, nbytes: int) -> Transfer:
        return self._transfer(nbytes, self.down_rate, self.receive_watts)

    def _transfer(self, nbytes: int, rate: float, watts: float) -> Transfer:
        frames = math.ceil(nbytes / (self.datagram - self.header))
        airtime = 8 * (nbytes + frames * self.header) / rate
        return Transfer(frames, airtime, airtime, airtime * watts)


@dataclass(frozen=True)
class Bluetooth:
    """Bluetooth Low Energy with data length extension, in an open connection, without losses."""

    name = "BLE 1M"
    payload = 244  # of 251 bytes; 4 are for L2CAP, 3 for ATT
    overhead = 17  # preamble, access address, header, CRC; L2CAP and ATT
    empty = 80e-6  # seconds of the packet that acknowledges
    gap = 150e-6  # seconds between two packets
    send_watts = 0.0071 * 3.0
    receive_watts = 0.0065 * 3.0

    def up(self, nbytes: int) -> Transfer:
        return self._transfer(nbytes, self.send_watts, self.receive_watts)

    def down(self, nbytes: int) -> Transfer:
        return self._transfer(nbytes, self.receive_watts, self.send_watts)

    def _transfer(self, nbytes: int, watts: float, watts_of_reply: float) -> Transfer:
        frames = math.ceil(nbytes / self.payload)
        data = 8e-6 * (nbytes + frames * self.overhead)
        replies = frames * self.empty
        gaps = 2 * frames * self.gap  # the radio is counted as receiving
        joules = data * watts + replies * watts_of_reply + gaps * self.receive_watts
        return Transfer(frames, data + replies, data + replies + gaps, joules)


LINKS: tuple[LoRaWan | NbIot | Bluetooth, ...] = (
    *(LoRaWan(sf, n) for sf, n in ((7, 222), (8, 222), (9, 115), (10, 51), (11, 51), (12, 51))),
    NbIot(),
    Bluetooth(),
)

CASES: tuple[tuple[str, int, Method], ...] = (
    ("stc, p = 1/20", 650, stc(p_up=1 / 20, p_down=1 / 20)),
    ("stc, p = 1/400", 10_000, stc()),
    ("stc, p = 1/400", 100_000, stc()),
    ("uncompressed", 100_000, sgd()),
)


def message_lengths(size: int, method: Method) -> tuple[int, int]:
    """Bytes of an upload and of a broadcast, with ten clients in a round."""
    rng = np.random.default_rng(0)
    layout = Layout.flat(size)
    server = Server(np.zeros(size, np.float32), method, layout)
    for number in range(COHORT):
        client = Client(number, method, layout, server.weights)
        upload = client.send(0.01 * rng.standard_normal(size, np.float32)).data
        server.receive(number, upload, 1)
    return len(upload), len(server.finish_round().data)


def duration(seconds: float) -> str:
    """A duration with two or three digits.

    >>> [duration(s) for s in (0.0042, 0.25, 9.87, 250, 7300, 200000)]
    ['4.2 ms', '250 ms', '9.9 s', '4.2 min', '2.0 h', '2.3 d']
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return _short(seconds / length, unit)
    return _short(1000 * seconds, "ms")


def energy(joules: float) -> str:
    """An energy with two or three digits.

    >>> [energy(j) for j in (0.00004, 0.0042, 9.87, 250)]
    ['0.04 mJ', '4.2 mJ', '9.9 J', '250 J']
    """
    return _short(joules, "J") if joules >= 1 else _short(1000 * joules, "mJ")


def _short(value: float, unit: str) -> str:
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f} {unit}"


def lines() -> Iterator[str]:
    """The tables."""
    for name, size, method in CASES:
        up_bytes, down_bytes = message_lengths(size, method)
        messages = f"upload {up_bytes:,} bytes, broadcast {down_bytes:,} bytes"
        yield f"**{size:,} parameters, {name}**: {messages}"
        yield ""
        yield (
            "| link | frames up | on air up | upload takes | energy up | on air down |"
            " broadcast takes | energy down |"
        )
        yield "|---|" + "---:|" * 7
        for link in LINKS:
            up, down = link.up(up_bytes), link.down(down_bytes)
            cells = [link.name, f"{up.frames:,}", duration(up.airtime), duration(up.seconds)]
            cells += [energy(up.joules), duration(down.airtime), duration(down.seconds)]
            cells += [energy(down.joules)]
            yield "| " + " | ".join(cells) + " |"
        yield ""


def tables() -> str:
    return "\n".join(lines())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="page whose tables to replace")
    page = parser.parse_args().page
    if page is None:
        print(tables())
        return
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}")


if __name__ == "__main__":
    main()
