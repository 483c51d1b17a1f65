"""Bodies that add or change a worker.

All but URL and role is kept as labels; labels that the gateway reads may also be fields of their own.
"""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from policies import (
    BOOTSTRAP_HOST_LABEL,
    BOOTSTRAP_PORT_LABEL,
    CONVERTIBLE_LABEL,
    DP_SIZE_LABEL,
    HANDOVER_LABEL,
    SITE_LABEL,
    HandOverName,
)
from radix import TOKENS_MAX
from router.fleet import ORIGIN_LABELS
from router.named_workers import check_labels

Role = Literal["plain", "prefill", "decode", "encode"]
PeersType = Literal["plain", "regular", "prefill", "decode", "encode"]

_FIELDS = {
    "site": SITE_LABEL,
    "handover": HANDOVER_LABEL,
    "bootstrap_host": BOOTSTRAP_HOST_LABEL,
    "bootstrap_port": BOOTSTRAP_PORT_LABEL,
    "convertible": CONVERTIBLE_LABEL,
    "dp_size": DP_SIZE_LABEL,
}
"""Labels that have fields of their own."""


class _Said(BaseModel):
    """Properties of a worker that may be given when it is added and later."""

    role: Role | None = Field(
        default=None, description="plain serves whole requests; prefill and decode share them."
    )
    worker_type: PeersType | None = Field(
        default=None, description="The same, as the older routers call it; regular is plain."
    )
    capacity_tokens: int | None = Field(
        default=None, ge=0, le=TOKENS_MAX, description="KV capacity in tokens; 0 to ask the engine."
    )
    labels: dict[str, str] | None = Field(
        default=None, description="Free labels; worker_class prices it. They replace all that it had."
    )
    site: str | None = Field(default=None, description="Its site; left out, this gateway's site.")
    handover: HandOverName | None = Field(
        default=None, description="Its hand-over protocol; left out, its engine's default."
    )
    bootstrap_host: str | None = Field(
        default=None,
        min_length=1,
        description="Host where decode workers find this prefill worker; left out, that of its URL.",
    )
    bootstrap_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of its bootstrap server; left out, the one that it says, or 8998.",
    )
    convertible: bool | None = Field(
        default=None, description="True if the slow loop may change its role (see roles.mode)."
    )
    dp_size: int | None = Field(default=None, ge=1, le=4096, description="SGLang: its data-parallel ranks.")

    @model_validator(mode="after")
    def _role_and_labels_are_sound(self) -> Self:
        if self.role and self.worker_type and self.role != plain_role(self.worker_type):
            raise ValueError(f"role {self.role} and worker_type {self.worker_type} differ; give one of them")
        check_labels(self.labels_over({}))
        return self

    @property
    def said_role(self) -> Role | None:
        """Return the role, in either word; None if it is not given."""
        return self.role or (plain_role(self.worker_type) if self.worker_type else None)

    def labels_over(self, current: Mapping[str, str]) -> dict[str, str]:
        """All labels, where it had ``current`` ones."""
        labels = dict(current if self.labels is None else self.labels)
        for name, label in _FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                labels[label] = str(value).lower() if isinstance(value, bool) else str(value)
        return labels


class WorkerSpec(_Said):
    """A worker to add."""

    model_config = ConfigDict(  # the peers' clients send more than we use
        extra="ignore",
        json_schema_extra={"examples": [{"url": "http://10.0.0.7:30000", "labels": {"zone": "b"}}]},
    )

    url: str = Field(max_length=2048, description="Base URL, like http://10.0.0.7:30000.")

    @model_validator(mode="after")
    def _nobody_says_how_it_came(self) -> Self:
        for name in sorted(ORIGIN_LABELS & (self.labels or {}).keys()):
            raise ValueError(f"the label {name} is the gateway's to write")
        return self


class WorkerChange(_Said):
    """Changes of a worker; fields that are left out stay."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"draining": True}]})

    draining: bool | None = Field(default=None, description="True: no new requests; False: back in service.")


class WorkerPatch(WorkerChange):
    """Changes of a worker; fields that are left out stay, labels too."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"labels": {"zone": "b", "old": None}}]}
    )

    labels: dict[str, str | None] | None = Field(  # type: ignore[assignment]
        default=None, description="Labels to set; null takes one away."
    )

    def labels_over(self, current: Mapping[str, str]) -> dict[str, str]:
        """All labels, where it had ``current`` ones."""
        fields = self.model_copy(update={"labels": None})
        labels = super(WorkerPatch, fields).labels_over(current)
        for name, value in (self.labels or {}).items():
            if value is None:
                labels.pop(name, None)
            else:
                labels[name] = value
        return labels


def plain_role(peers_type: PeersType) -> Role:
    """A role in our words."""
    return "plain" if peers_type == "regular" else peers_type
