from typing import Any

import pytest
from fakes.handover_worker import FakeWorker

from loadtest.engine.faults import Faults
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.handover.build import build_handover
from loadtest.engine.handover.sglang import DecodeRooms, PrefillRooms
from loadtest.engine.handover.vllm import KvTransfers
from loadtest.engine.profiles import PROFILES


@pytest.mark.parametrize(
    ("protocol", "part", "kind"),
    [
        ("sglang", "prefill", PrefillRooms),
        ("sglang", "decode", DecodeRooms),
        ("nixl", "both", KvTransfers),
        ("mooncake", "decode", KvTransfers),
    ],
)
def test_a_protocol_and_a_part_say_what_takes_the_legs(protocol: Any, part: Any, kind: Any) -> None:
    settings = HandoverSettings(protocol=protocol, part=part)

    assert type(build_handover(settings, PROFILES["mimo-v2-flash"], FakeWorker(), Faults())) is kind
