"""Facts of a request that decisions need, however it was parsed."""

from typing import Protocol

import msgspec


class RequestFacts(Protocol):
    """A request, as decisions see it; a gateway's parsed request has these fields, among others."""

    @property
    def model(self) -> str | None:
        """Model, as the client wrote it; None if there is none."""

    @property
    def paths(self) -> tuple[bytes, ...]:
        """Packed block hashes of each prompt (`radix.chain_bytes`); empty without a prompt."""

    @property
    def prompt_bytes(self) -> int:
        """Canonical bytes of all prompts; 0 for token ids."""

    @property
    def prompt_token_ids(self) -> int:
        """Token ids of all prompts; 0 for text."""

    @property
    def tokenized_bytes(self) -> int:
        """Canonical bytes of the prompts whose token ids were found out; 0 if they were not."""

    @property
    def output_tokens_max(self) -> int | None:
        """The client's limit of output tokens of each answer, None if absent."""

    @property
    def n(self) -> int:
        """Answers per prompt, >= 1."""

    @property
    def key(self) -> int:
        """64-bit hash of all of the prompt."""

    @property
    def prefix_key(self) -> int:
        """64-bit hash of the prompt's first block, or of all of it if it is shorter."""

    @property
    def tenant(self) -> str:
        """Name of the tenant; empty for none."""

    @property
    def computes_all(self) -> bool:
        """True if engines compute the whole prompt, even its cached part."""


class BareRequest(msgspec.Struct, frozen=True, gc=False):
    """The facts alone, for simulations, which parse nothing (see `RequestFacts`)."""

    model: str | None
    paths: tuple[bytes, ...]
    prompt_bytes: int
    key: int
    prefix_key: int
    prompt_token_ids: int = 0
    tokenized_bytes: int = 0
    output_tokens_max: int | None = None
    n: int = 1
    tenant: str = ""
    computes_all: bool = False
