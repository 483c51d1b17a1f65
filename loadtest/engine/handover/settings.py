"""Part of an engine in prefill/decode disaggregation, in the words of its dialect.

    SGLang   --disaggregation-mode prefill|decode, --disaggregation-bootstrap-port, --enable-pd-role-switch
    vLLM     --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'

Waits are the engines', in real seconds: SGLang's from srt/environ.py, vLLM's lease from
``kv_connector_extra_config`` (nixl/base_scheduler.py).
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from policies import HandOverName, VllmConnector

Part = Literal["prefill", "decode", "both"]

_CONNECTORS: dict[str, VllmConnector] = {"NixlConnector": "nixl", "MooncakeConnector": "mooncake"}
_ROLES: dict[str, Part] = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverSettings:
    """One engine's part.

    Attributes:
        protocol: Between the legs of a request.
        part: Legs that this engine takes.
        engine_id: For vLLM's decode engines; empty makes one up.
        port: SGLang's and Mooncake's bootstrap port, or NIXL's side channel; 0 takes a free one. Engines that
            only decode do not listen.
        bootstrap_s: SGLang: longest wait of a prefill leg for its decode leg.
        waiting_s: SGLang: longest wait of a decode leg for its KV; Mooncake: of KV to be fetched.
        heartbeat_s: SGLang: period of a decode engine's checks that a prefill engine lives.
        attempts: SGLang: tries, a second apart, to reach a prefill engine's bootstrap server.
        lease_s: NIXL: time that KV is kept after the last sign of its decode leg.
        switches: SGLang: another part is taken on demand (``POST /pd_role_switch``).
        kv_link: URL of the link that its KV leaves over (`loadtest.engine.link`); empty: the site's fabric.
    """

    protocol: HandOverName
    part: Part
    engine_id: str = ""
    port: int = 0
    bootstrap_s: float = 300.0
    waiting_s: float = 300.0
    heartbeat_s: float = 5.0
    attempts: int = 15
    lease_s: float = 30.0
    switches: bool = False
    kv_link: str = ""

    def __post_init__(self) -> None:
        if self.switches and self.protocol != "sglang":
            raise ValueError(f"switches: no engine with {self.protocol} switches its part on demand")
        if self.kv_link and not self.kv_link.startswith("http://"):
            raise ValueError(f"kv_link must be an http:// URL, not {self.kv_link!r}")

    @classmethod
    def parse_transfer_config(cls, text: str, port: int) -> "HandoverSettings":
        """Read vLLM's ``--kv-transfer-config``; `ValueError` for an error, or for what is not modelled."""
        try:
            given = msgspec.json.decode(text, type=_TransferConfig)
        except msgspec.MsgspecError as error:
            raise ValueError(f"kv_transfer_config: {error}") from error
        if given.kv_connector not in _CONNECTORS or given.kv_role not in _ROLES:
            connectors, roles = ", ".join(_CONNECTORS), ", ".join(_ROLES)
            raise ValueError(f"kv_transfer_config: kv_connector is one of {connectors}, kv_role of {roles}")
        if given.kv_load_failure_policy != "fail":
            raise ValueError("kv_transfer_config: only kv_load_failure_policy fail is modelled")
        lease_s = given.kv_connector_extra_config.get("kv_lease_duration", 30)
        if not isinstance(lease_s, int | float) or lease_s <= 0:
            raise ValueError("kv_transfer_config: kv_lease_duration must be a number above 0")
        return cls(
            protocol=_CONNECTORS[given.kv_connector],
            part=_ROLES[given.kv_role],
            engine_id=given.engine_id or "",
            port=port,
            waiting_s=480.0,
            lease_s=float(lease_s),
        )

    @property
    def shares_nothing(self) -> bool:
        """True if its cache keeps nothing for other requests: SGLang's decode engines, by default."""
        return self.protocol == "sglang" and self.part == "decode"

    @property
    def listens(self) -> bool:
        """True if decode engines come to it."""
        return self.part != "decode"


class _TransferConfig(msgspec.Struct):
    """The fields that matter; vLLM has more, about buffers and ranks."""

    kv_connector: str
    kv_role: str
    engine_id: str | None = None
    kv_load_failure_policy: str = "fail"
    kv_connector_extra_config: dict[str, Any] = {}
