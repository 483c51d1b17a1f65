"""Prefill workers, and the decode workers that take over from them.

A request that a *prefill* worker begins is ended by a *decode* worker of the same hand-over protocol, which
needs room for its KV from the start. A plain worker needs no partner; neither does a decode worker whose
engine can prefill, when it takes a request whole. Labels give a worker's possible roles; the registry finds
the healthy ones that serve a model, once for each list of workers (`Pairing`). A fleet of plain workers has
no pairing, and pays nothing.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.pricing.views import Slots

SITE_LABEL = "site"
"""Label of a worker's site; `Worker.site` also knows those without one."""

HANDOVER_LABEL = "handover"
"""Label of its hand-over protocol, a key of `HAND_OVERS`."""

BOOTSTRAP_PORT_LABEL = "bootstrap_port"
BOOTSTRAP_HOST_LABEL = "bootstrap_host"
"""Labels of a prefill worker: the address that decode workers connect to."""

CONVERTIBLE_LABEL = "convertible"
"""Label of a worker whose role the slow loop may change: ``true``."""

DP_SIZE_LABEL = "dp_size"
"""Label of the number of its engine's data-parallel ranks."""

KEEPS_PREFIXES_LABEL = "keeps_prefixes"
"""Label ``true`` of a decode worker that keeps the prefixes it was handed, and is sent only the rest,
although its protocol does not (SGLang's ``--disaggregation-decode-enable-radix-cache``).
"""

ALONE = -1
"""Group of a worker that needs no partner."""


class HandOver(msgspec.Struct, frozen=True, gc=False):
    """Properties of a hand-over protocol; ``router.handover`` speaks it.

    Attributes:
        name: Name of the protocol.
        concurrent: Both legs are sent at once; else the decode leg follows the prefill leg's answer.
        overlap_ratio: Share of the prefill during which its KV is already on its way, 0 to 1.
        keeps_prefixes: Decode workers keep the prefixes that they were given, and are given only what they
            lack.
        prefills: A decode worker can take a request whole.
    """

    name: str
    concurrent: bool = False
    overlap_ratio: float = 0.0
    keeps_prefixes: bool = False
    prefills: bool = False


VllmConnector = Literal["nixl", "mooncake"]
"""Names of vLLM's hand-over protocols."""

HandOverName = Literal["sglang", VllmConnector]
"""Names of all hand-over protocols, the keys of `HAND_OVERS`."""

HAND_OVERS: Mapping[str, HandOver] = MappingProxyType(
    {
        protocol.name: protocol
        for protocol in (
            HandOver("sglang", concurrent=True, overlap_ratio=1.0),
            HandOver("nixl", keeps_prefixes=True, prefills=True),
            HandOver("mooncake", concurrent=True, keeps_prefixes=True, prefills=True),
        )
    }
)
"""SGLang sends each chunk when it is computed, and its decode workers begin with an empty cache
(srt/disaggregation/prefill.py, ``send_kv_chunk``), unless the label says otherwise. vLLM's ask for the
blocks that they lack, and get them when the prefill is over: NIXL's read them, Mooncake's are written to
by a sender that waits for ``send_meta.ready``
(vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py).
"""

UNKNOWN = HandOver("")
"""Any other protocol: nothing is assumed."""


class Partners(msgspec.Struct, frozen=True, eq=False):
    """Decode workers of one hand-over protocol that may be sent requests now; not empty, in rising order."""

    protocol: str
    slots: Slots

    @property
    def hand_over(self) -> HandOver:
        """Properties of the protocol."""
        return HAND_OVERS.get(self.protocol, UNKNOWN)


class Pairing(msgspec.Struct, frozen=True, eq=False):
    """Workers of a list that need a partner, and their partners.

    Attributes:
        slots: The list: all that may begin a request, in rising order. A decision may be about any of them.
        groups: Index of the partners of each; `ALONE` if it needs none: a plain worker, or a decode worker
            that takes requests whole.
        partners: At least one.
    """

    slots: Slots
    groups: NDArray[np.intp]
    partners: tuple[Partners, ...]

    def groups_of(self, slots: Slots) -> NDArray[np.intp]:
        """Index of the partners of some workers of the list."""
        return self.groups[np.searchsorted(self.slots, slots)]
