"""A cable to a network namespace, as a process: it delays, loses, narrows and swallows packets.

    here                                                        a namespace that this process makes
    10.77.N.1 (tun) <── read ── rule of the port ── write ──> (tun) 10.77.N.2, default route

TUN devices exist in nearly every kernel, unlike `netem`, and a fault of IP packets is real to TCP. Namespace
and devices end with the process and those that were started in the namespace (``nsenter
--net=/proc/PID/ns/net``). Rules are JSON objects, one a line, on a Unix socket that answers each:

    {"ports": [6379], "delay_s": 0.1, "loss_ratio": 0.05, "bytes_per_s": 200000}
    {"ports": []}          ends all rules

A rule holds for packets to or from its ports, each way. A loss of 1 swallows all. Packets more than `QUEUE_S`
behind on a narrow cable are lost, as in any router.

    python -m loadtest.chaos.cable --number 1 --control PATH --seed 7
"""

import argparse
import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

MTU_BYTES = 32_768
"""As much as a loopback device's segments: a prompt is one packet, not twenty."""

QUEUE_S = 1.0
BURST = 64

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_CLONE_NEWNET = 0x40000000
_TCP = 6


@dataclass(frozen=True, slots=True)
class Rule:
    """Treatment of packets to and from TCP ``ports``, each way.

    Attributes:
        loss_ratio: Share that is lost.
        bytes_per_s: 0 for no bound.
    """

    ports: tuple[int, ...] = ()
    delay_s: float = 0.0
    loss_ratio: float = 0.0
    bytes_per_s: float = 0.0

    @classmethod
    def parse(cls, line: bytes) -> "Rule":
        """Read a line of the control socket; `ValueError` if it is no rule."""
        fields: Any = json.loads(line)
        if not isinstance(fields, dict) or not fields.keys() <= set(cls.__slots__):
            raise ValueError(f"a rule has {', '.join(cls.__slots__)}")
        return cls(**fields | {"ports": tuple(fields["ports"])})


class Direction:
    """One way through the cable, from one non-blocking TUN device to another; ``rules`` are by port."""

    def __init__(self, source: int, sink: int, rules: dict[int, Rule], chance: random.Random) -> None:
        self._source = source
        self._sink = sink
        self._rules = rules
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._free_s: dict[Rule, float] = {}

    def pump(self) -> None:
        """Take what has come."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(BURST):
                self.take(os.read(self._source, MTU_BYTES + 64))

    def take(self, packet: bytes) -> None:
        """Pass a packet on, now, later or never."""
        rule = self._rule_of(packet) if self._rules else None
        if rule is None:
            self._write(packet)
            return
        if rule.loss_ratio and self._chance.random() < rule.loss_ratio:
            return
        now_s = self._loop.time()
        due_s = now_s + rule.delay_s
        if rule.bytes_per_s:
            free_s = max(self._free_s.get(rule, 0.0), now_s)
            if free_s > now_s + QUEUE_S:
                return
            self._free_s[rule] = free_s + len(packet) / rule.bytes_per_s
            due_s = self._free_s[rule] + rule.delay_s
        self._loop.call_at(due_s, self._write, packet)

    def _rule_of(self, packet: bytes) -> Rule | None:
        if packet[0] >> 4 != 4 or packet[9] != _TCP:
            return None
        at = (packet[0] & 15) * 4
        rules = self._rules
        to = int.from_bytes(packet[at + 2 : at + 4], "big")
        return rules.get(to) or rules.get(int.from_bytes(packet[at : at + 2], "big"))

    def _write(self, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # a full device loses packets, as any other
            os.write(self._sink, packet)


def address(number: int, *, inside: bool = True) -> str:
    """Address of the end of a cable that is inside of its namespace, or of the other one."""
    return f"10.77.{number}.{2 if inside else 1}"


def _tun(name: str, own: str, peer: str) -> int:
    """Make a TUN device in the namespace of this process."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    ip("address", "add", f"{own}/32", "peer", peer, "dev", name)
    ip("link", "set", name, "mtu", str(MTU_BYTES), "up")
    return device


def ip(*arguments: str) -> None:
    """Run ``ip`` (iproute2); `CalledProcessError` if it fails."""
    subprocess.run(("ip", *arguments), check=True, capture_output=True)  # noqa: S603, S607 - our own words


async def _run(here: int, there: int, control: Path, seed: int) -> None:
    loop = asyncio.get_running_loop()
    rules: dict[int, Rule] = {}
    chance = random.Random(seed)
    for source, sink in ((here, there), (there, here)):
        loop.add_reader(source, Direction(source, sink, rules, chance).pump)

    async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            rule = Rule.parse(line)
            if not rule.ports:
                rules.clear()
            rules.update(dict.fromkeys(rule.ports, rule))
            writer.write(b"ok\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(told, control) as server:
        print("cable ready", flush=True)
        await server.serve_forever()


def main() -> int:
    """Make the namespace and its devices, and pass packets until killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos.cable", description="A cable that fails.")
    parser.add_argument("--number", type=int, required=True, help="of the cable, 1 to 254")
    parser.add_argument("--control", type=Path, required=True, help="Unix socket to be told rules")
    parser.add_argument("--seed", type=int, default=0, help="of what is lost [%(default)s]")
    options = parser.parse_args()
    outer, inner = address(options.number, inside=False), address(options.number)
    here = _tun(f"cable{options.number}", outer, inner)
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    ip("link", "set", "lo", "up")
    there = _tun("uplink", inner, outer)
    ip("route", "add", "default", "via", outer)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_run(here, there, options.control, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
