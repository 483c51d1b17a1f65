"""Which protocols do what."""

import numpy as np

from policies import HAND_OVERS, Partners


def test_only_engines_that_keep_prefixes_on_decode_workers_prefill_there() -> None:
    """SGLang's decode workers refuse a request without a prefill worker; vLLM's are ordinary engines."""
    assert {name for name, protocol in HAND_OVERS.items() if protocol.prefills} == {"nixl", "mooncake"}
    assert {name for name, protocol in HAND_OVERS.items() if protocol.keeps_prefixes} == {"nixl", "mooncake"}


def test_only_sglang_sends_kv_while_the_prefill_goes_on() -> None:
    assert {name for name, protocol in HAND_OVERS.items() if protocol.overlap_ratio} == {"sglang"}


def test_of_an_unknown_protocol_nothing_is_taken_for_granted() -> None:
    unknown = Partners("carrier_pigeon", np.arange(1)).hand_over
    assert (unknown.overlap_ratio, unknown.keeps_prefixes, unknown.prefills) == (0.0, False, False)
