"""Settings of models (`router.models`): names that clients may ask for, and the models that serve them."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, model_validator
from pydantic.dataclasses import dataclass as judged

from policies import setting
from radix import is_name
from router.values import Secret, http_url

ALIASES_MAX = 1000

SPLITS_MAX = 100
ADAPTERS_MAX = 1000
PATH_CHARS_MAX = 1024

ANY = "*"

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,315}=[A-Za-z0-9._-]{0,63}")


@judged(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True))
class Split:
    """A share of a model's requests for a canary: the value type of models.splits."""

    ratio: float = setting(0.0, "Share of the requests that go to the canary, 0 to 1.", ge=0, le=1)
    label: str = setting("", "Label of the canary's workers, as KEY=VALUE; all others are the rest.")
    model: str = setting("", "Model that is the canary.")
    stick: Literal["prefix", "tenant", "none"] = setting(
        "prefix",
        "Requests that go the same way: of a session (docs/sessions.md), else with the same beginning, or "
        "of a tenant; none for each prompt by itself.",
    )
    stick_tokens: int = setting(
        0, "Beginning of a prompt by which prefix tells conversations apart, in tokens.", ge=0, le=1 << 30
    )

    @model_validator(mode="after")
    def _one_canary(self) -> Self:
        if bool(self.label) == bool(self.model):
            raise ValueError("give either label or model")
        if self.label and not _LABEL.fullmatch(self.label):
            raise ValueError("label is no KEY=VALUE")
        if self.model and (not is_name(self.model) or ANY in self.model):
            raise ValueError("model is no name of a model")
        return self


@judged(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True))
class Adapter:
    """A LoRA adapter that the gateway has engines load: the value type of models.adapters."""

    path: str = setting("", "Where engines find it: a folder or a name that they resolve.", min_length=1)
    base: str = setting("", "Model that it belongs to, as workers list it.", min_length=1)
    workers: int = setting(1, "Workers that should hold it.", ge=1, le=1000)

    @model_validator(mode="after")
    def _names(self) -> Self:
        if not is_name(self.base) or ANY in self.base:
            raise ValueError("base is no name of a model")
        if not 0 < len(self.path) <= PATH_CHARS_MAX or not self.path.isprintable():
            raise ValueError("path is no path")
        return self


def _adapters(adapters: dict[str, Adapter]) -> dict[str, Adapter]:
    """Check the names of adapters."""
    if len(adapters) > ADAPTERS_MAX:
        raise ValueError(f"{len(adapters)} adapters are more than {ADAPTERS_MAX}")
    for name, adapter in adapters.items():
        if not is_name(name) or ANY in name or name == adapter.base:
            raise ValueError(f"{name[:40]!r} is no name of an adapter")
    return adapters


def _splits(splits: dict[str, Split]) -> dict[str, Split]:
    """Check the names of split models."""
    if len(splits) > SPLITS_MAX:
        raise ValueError(f"{len(splits)} splits are more than {SPLITS_MAX}")
    for model, split in splits.items():
        if not is_name(model):
            raise ValueError(f"{model[:40]!r} is no name of a model")
        if split.model == model:
            raise ValueError(f"{model[:40]!r} cannot be its own canary")
    return splits


def _aliases(aliases: dict[str, str]) -> dict[str, str]:
    """Check aliases: names, of which the first may end with a star."""
    if len(aliases) > ALIASES_MAX:
        raise ValueError(f"{len(aliases)} aliases are more than {ALIASES_MAX}")
    for alias, model in aliases.items():
        if not is_name(alias) or ANY in alias[:-1]:
            raise ValueError(f"{alias[:40]!r} is no name of a model; a * may stand at its end only")
        if not is_name(model) or ANY in model:
            raise ValueError(f"{model[:40]!r} is no name of a model")
    return aliases


@dataclass(frozen=True)
class ModelRules:
    """Names that clients may ask for, and the models that serve them."""

    aliases: Annotated[dict[str, str], AfterValidator(_aliases)] = setting(
        {},
        "Models that serve requests for other names, as ALIAS=MODEL: a client that asks for ALIAS gets "
        "MODEL, and the worker reads MODEL in the body. An ALIAS that ends with * stands for all names that "
        "begin so and that no worker lists; an exact one comes first, then the longest. See docs/models.md.",
        flag="model-alias",
        allowed="ALIAS=MODEL pairs or a YAML mapping; ALIAS may end with *",
        live=True,
    )
    list_aliases: bool = setting(
        True,  # noqa: FBT003 - a default
        "List the aliases whose model a worker serves in GET /v1/models; those with a * are never listed.",
        flag="list-model-aliases",
        live=True,
    )
    splits: Annotated[dict[str, Split], AfterValidator(_splits)] = setting(
        {},
        "Canaries: a share of a model's requests for workers with a label, or for another model, as "
        "MODEL={ratio: 0.05, label: KEY=VALUE} or MODEL={ratio: 0.05, model: NAME}, with stick: prefix | "
        "tenant | none and stick_tokens. Where no worker of the canary may take a request, the others do, "
        "and the other way round. See docs/models.md.",
        flag="model-split",
        allowed="MODEL={ratio: R, label: KEY=VALUE} pairs or a YAML mapping",
        live=True,
    )
    adapters: Annotated[dict[str, Adapter], AfterValidator(_adapters)] = setting(
        {},
        "LoRA adapters that the gateway has engines load when a request asks for one, as NAME={path: PATH, "
        "base: MODEL, workers: K}: at K of the workers that serve MODEL, the same at all replicas. See "
        "docs/models.md.",
        flag="lora-adapters",
        allowed="NAME={path: PATH, base: MODEL} pairs or a YAML mapping",
        live=True,
    )
    adapters_per_worker_max: int = setting(
        4,
        "Most of these adapters that a worker holds; before one more is loaded, the one used longest ago is "
        "unloaded. Keep it at or below the engine's own bound (vLLM --max-cpu-loras, SGLang "
        "--max-loaded-loras).",
        flag="lora-adapters-per-worker",
        ge=1,
        le=1000,
        live=True,
    )
    mirror_url: Annotated[str, AfterValidator(lambda url: url and http_url(url))] = setting(
        "",
        "Second fleet that gets a copy of some requests; its answers are thrown away. The base URL of a "
        "gateway or an engine. Empty: none. It needs a restart, since prompts go there. See docs/models.md.",
        allowed="http://HOST:PORT",
    )
    mirror_ratio: float = setting(
        0.0,
        "Share of the requests that models.mirror_url gets a copy of, 0 to 1. The default copies none.",
        ge=0,
        le=1,
        live=True,
    )
    mirror_model: str = setting(
        "",
        "Model that the copies ask for. Empty: the one that the client asked for.",
        live=True,
    )
    mirror_inflight_max: int = setting(
        32,
        "Most copies under way at a time in one process; more are not made, and counted. Each holds a body "
        "of at most 4 MiB.",
        ge=1,
        le=10_000,
        live=True,
    )
    mirror_timeout_s: float = setting(
        60.0,
        "Longest time that a copy may take, in seconds, its answer included.",
        gt=0,
        le=3600,
        live=True,
    )
    mirror_key: Secret = setting(
        None,
        "Key that the second fleet asks for. Keys of clients are never copied.",
    )
