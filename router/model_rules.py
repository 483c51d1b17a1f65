"""Settings of models (`router.models`): names that clients may ask for, and the models that serve them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from policies import setting
from radix import is_name

ALIASES_MAX = 1000

ANY = "*"


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
        "Whether GET /v1/models lists the aliases whose model a worker serves; those with a * are never "
        "listed.",
        flag="list-model-aliases",
        live=True,
    )
