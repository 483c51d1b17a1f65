"""Meeting point of the two legs of a SGLang request, from its body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.engine.errors import RequestRefused

_DEFAULT_PORT = 8998


@dataclass(frozen=True, slots=True)
class Meeting:
    """Address at which the legs of a job meet: the prefill engine's bootstrap server, and a unique room."""

    host: str
    port: int
    room: int


def meetings(body: Mapping[str, Any], ids: Sequence[str]) -> Sequence[Meeting]:
    """Read ``bootstrap_host``, ``bootstrap_port`` and ``bootstrap_room``, each one value or one per job.

    A batch with one room numbers on from it, as SGLang's io_struct.py does. Raises `RequestRefused` if there
    is no room, or not as many as jobs.
    """
    jobs = len(ids)
    room = body.get("bootstrap_room")
    if isinstance(room, int) and not isinstance(room, bool):
        room = [room + index for index in range(jobs)]
    if not isinstance(room, list) or not all(isinstance(one, int) for one in room):
        raise RequestRefused(
            f"Invalid request: Disaggregated request received without bootstrap room id. req.rid='{ids[0]}'"
        )
    host, port = (
        value if isinstance(value, list) else [value] * jobs
        for value in (body.get("bootstrap_host"), body.get("bootstrap_port"))
    )
    if not len(host) == len(port) == len(room) == jobs:
        raise RequestRefused(
            "bootstrap_host, bootstrap_port and bootstrap_room must be as many as the prompts"
        )
    if not all(isinstance(one, str) for one in host):
        raise RequestRefused("bootstrap_host must be a string", param="bootstrap_host")
    if not all(one is None or isinstance(one, int) for one in port):
        raise RequestRefused("bootstrap_port must be an integer", param="bootstrap_port")
    return [
        Meeting(host, _DEFAULT_PORT if port is None else port, room)
        for host, port, room in zip(host, port, room, strict=True)
    ]
