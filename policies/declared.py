"""A setting: a field of a frozen dataclass with its limits and the way in which a user gives it.

The dataclass stands beside the code that reads its fields; `router.settings` puts these dataclasses together
and validates users' values. The field's ``metadata`` holds limits and words, in the terms of
`pydantic.Field`.
"""

import re
from dataclasses import field
from typing import Any


def setting(
    default: Any,
    description: str,
    *,
    flag: str = "",
    choices: tuple[str, ...] = (),
    or_pattern: str = "",
    allowed: str = "",
    live: bool = False,
    common: bool = False,
    **limits: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: Value without a user's.
        description: Effect, unit, how to turn it off, and the reason for the default.
        flag: Command-line name without dashes in front, where it is not the field's own name with dashes and
            ``-secs`` for ``_s``.
        choices: Valid values, where its type does not name them.
        or_pattern: Regular expression of texts that are valid beside the choices.
        allowed: Valid values in words, where type and limits do not tell.
        live: True if it may change while the gateway serves (`router.live_settings`).
        common: True if ``--help`` shows it.
        limits: ``ge``, ``gt``, ``le``, ``lt``, ``pattern`` as in `pydantic.Field`.
    """
    extra = {"flag": flag, "choices": list(choices), "allowed": allowed, "live": live, "common": common}
    if choices:
        texts = [*map(re.escape, choices), *([or_pattern] if or_pattern else ())]
        limits["pattern"] = rf"^(?:{'|'.join(texts)})$"
    metadata = {"description": description, "json_schema_extra": extra, **limits}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)
