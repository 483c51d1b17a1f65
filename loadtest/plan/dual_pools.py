"""Savings by the layers of a model: KV that windows and linear states need not keep.

    all full   every layer keeps every token                        as if there were one kind of layer
    limit      full layers keep every token, the others next to nothing
    as run     the window pool holds a share of the tokens (SGLang ``--swa-full-tokens-ratio``), for the
               windows of many sequences

"Nearly 5x effective capacity", with 7 as the limit of 10 full layers in 70 (MiMo-V2.5 blog, 2026-05-30).
"""

from dataclasses import dataclass

from loadtest.engine.profiles import EngineProfile
from loadtest.engine.shape import ModelShape

LENGTHS_TOKENS = (1 << 13, 1 << 17, 1 << 20)
"""Sequences to weigh."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DualPools:
    """Savings of a model.

    Attributes:
        name: Name of the model.
        window_ratio: Tokens of the window pool per token of the full pool, as it is run; None if not known.
    """

    name: str
    shape: ModelShape
    window_ratio: float | None = None

    @property
    def all_full_token_bytes(self) -> int:
        """Bytes of a token if every layer kept it, each as one of its kind does."""
        shape = self.shape
        # A linear layer keeps no token: as if it were one of the full ones.
        return shape.token_bytes + shape.window_token_bytes + shape.state_layers * shape.full_layer_bytes

    @property
    def limit(self) -> float:
        """Tokens in the same memory over those of an all-full model, for prompts without end."""
        return self.all_full_token_bytes / self.shape.token_bytes

    @property
    def as_run(self) -> float | None:
        """The same with the window pool's share; None if it is not known, or there are no windows."""
        if not self.window_ratio or not self.shape.window_layers:
            return None
        return self.all_full_token_bytes / (
            self.shape.token_bytes + self.window_ratio * self.shape.window_token_bytes
        )

    def rows(self) -> list[tuple[int, float, float]]:
        """Length of a sequence in tokens, MiB if all layers were full, and MiB as it is."""
        return [
            (tokens, tokens * self.all_full_token_bytes / _MIB, self.shape.kv_bytes(tokens) / _MIB)
            for tokens in LENGTHS_TOKENS
        ]

    def sentences(self) -> list[str]:
        """The savings in sentences."""
        shape = self.shape
        if shape.layers == shape.full_layers:
            return [f"All layers of {self.name} keep every token: there is one pool."]
        kinds = [f"{shape.full_layers} of {shape.layers} layers keep every token"]
        if shape.window_layers:
            kinds.append(f"{shape.window_layers} the last {shape.window_tokens:,}")
        if shape.state_layers:
            kinds.append(f"{shape.state_layers} one state of {shape.state_layer_bytes / _MIB:.3g} MiB each")
        kept, full = shape.token_bytes / 1024, self.all_full_token_bytes / 1024
        layers = (
            f"Of {self.name} {', '.join(kinds)}: a token of a long prompt weighs {kept:,.4g} KiB instead of "
            f"{full:,.4g} KiB, so the same memory holds {self.limit:.1f} times as many."
        )
        as_run = self.as_run
        ratio = (
            f"With a window pool for one token in {1 / (self.window_ratio or 1):.3g}, as in the profile, it "
            f"holds {as_run:.1f} times as many."
            if as_run is not None
            else ""
        )
        weights = [
            f"A sequence of {tokens:,} tokens weighs {kept_mib:,.0f} MiB, with all layers full "
            f"{full_mib:,.0f} MiB: {full_mib / kept_mib:.1f} times as much."
            for tokens, full_mib, kept_mib in self.rows()
        ]
        return [layers, *([ratio] if ratio else []), *weights]


def layers_of(engine: EngineProfile) -> DualPools:
    """The savings of an engine's model, as its profile runs it."""
    return DualPools(engine.name, engine.shape, engine.rules.swa_tokens / engine.rules.full_tokens)
