"""Abilities of the hand-over protocols."""

from typing import get_args

import numpy as np

from policies import HAND_OVERS, HandOverName, Partners


def test_every_name_has_a_row() -> None:
    assert tuple(HAND_OVERS) == get_args(HandOverName)


def test_only_nixl_sends_the_decode_leg_after_the_prefill_legs_answer() -> None:
    assert {name for name, protocol in HAND_OVERS.items() if not protocol.concurrent} == {"nixl"}


def test_only_engines_that_keep_prefixes_on_decode_workers_prefill_there() -> None:
    """SGLang's decode workers refuse a request without a prefill worker; vLLM's are ordinary engines."""
    assert {name for name, protocol in HAND_OVERS.items() if protocol.prefills} == {"nixl", "mooncake"}
    assert {name for name, protocol in HAND_OVERS.items() if protocol.keeps_prefixes} == {"nixl", "mooncake"}


def test_only_sglang_sends_kv_while_the_prefill_goes_on() -> None:
    assert {name for name, protocol in HAND_OVERS.items() if protocol.overlap_ratio} == {"sglang"}


def test_of_an_unknown_protocol_nothing_is_taken_for_granted() -> None:
    unknown = Partners("carrier_pigeon", np.arange(1)).hand_over
    assert (unknown.overlap_ratio, unknown.keeps_prefixes, unknown.prefills) == (0.0, False, False)
