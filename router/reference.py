"""The settings as documentation: the Markdown reference, and the effective values with their origins.

Both are written from `router.catalogue`; a test compares ``docs/configuration.md`` with
`configuration_reference`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import getmodule
from math import inf
from typing import Any

from pydantic import SecretStr

from policies import POLICIES
from router.catalogue import CATALOGUE, Setting, section_title
from router.flags import shown_default
from router.settings import Settings
from router.sources import CONFIG_ENV, HIDDEN, Loaded

_PASSWORD = re.compile(r"(?<=://)[^@/]*:[^@/]*(?=@)|(?<=password=)[^&]*")

_OPENING = f"""# Configuration reference

Written by `cacheway config --reference`; `make docs` writes it again.

Every setting can be given in three ways. The first that is present wins:

1. a flag of `cacheway serve`: `--request-timeout-secs 600`
2. an environment variable: `CACHEWAY_REQUEST_TIMEOUT_SECS=600`; an empty one counts as not set
3. a line of a YAML file named with `--config` or `{CONFIG_ENV}`; a null counts as not set

```yaml
server:
  request_timeout_s: 600
fleet:
  worker_urls: [http://engine-0:8000, http://engine-1:8000]
```

`cacheway config` takes the same flags and prints the effective values and where each came from. An unknown
name or a wrong value stops the start with exit status 2. Lists are separated by spaces after a flag, by
commas or spaces in the environment. Maps are `NAME=VALUE` pairs, or a YAML mapping such as
`'{{"*": {{attention: sliding_window, window_tokens: 128}}}}'`.

Those marked *live* can be changed while the gateway serves, for all replicas
([how](runtime-settings.md)); the others need a restart.
"""


def configuration_reference() -> str:
    """The page ``docs/configuration.md``."""
    lines = [_OPENING]
    for section in Settings.model_fields:
        lines += [f"## {section}", "", f"{section_title(section)}.", ""]
        lines += ["| Setting | Flag and environment | Default | Allowed | Effect |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_line(row) for row in CATALOGUE.values() if row.section == section]
        lines += [""]
    lines += [
        "## Policies",
        "",
        "Values of placement.policy, and the placement.policy_options of each.",
        "",
    ]
    lines += ["| Policy | Options | Choice |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {_options(rule.options)} | {about(rule.price or rule.costs)} |"
        for name, rule in POLICIES.items()
    ]
    return "\n".join(lines) + "\n"


def _options(kind: type[Any] | None) -> str:
    if kind is None:
        return "none"
    return ", ".join(
        f"`{option.name}={option.default:g}` ({_interval(**option.metadata)})" for option in fields(kind)
    )


def _interval(low: float, high: float) -> str:
    return f"{low:g} or more" if high == inf else f"{low:g} to {high:g}"


def about(rule: Callable[..., object]) -> str:
    """Return a policy's description: the headline of its module, without the name in front."""
    headline = (getmodule(rule).__doc__ or "").strip().partition("\n")[0]
    _, _, about = headline.partition(": ")
    return about[:1].upper() + about[1:]


def _line(row: Setting) -> str:
    flag = row.flag
    if row.kind == "boolean" and not flag.startswith("--disable-"):
        flag = f"{flag}` / `--no-{flag.removeprefix('--')}"
    name = f"`{row.key}` (live)" if row.live else f"`{row.key}`"
    cells = [name, f"`{flag}` `{row.env}`", f"`{shown_default(row)}`", row.allowed, row.description]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def effective(loaded: Loaded) -> str:
    """Return the effective settings as a YAML file, with the origin of each as a comment.

    Secrets are masked, also a password within a URL.
    """
    return "\n".join(_effective_lines(loaded)) + "\n"


def _effective_lines(loaded: Loaded) -> Iterator[str]:
    width = max(len(row.name) for row in CATALOGUE.values()) + 26
    for section in Settings.model_fields:
        yield f"{section}:"
        for row in CATALOGUE.values():
            if row.section == section:
                value = getattr(getattr(loaded.settings, section), row.name)
                yield f"{f'  {row.name}: {_flow(shown(value))}':<{width}}  # {loaded.origins[row.key]}"


def shown(value: Any) -> Any:
    """A value that may be shown."""
    match value:
        case SecretStr():
            return HIDDEN
        case _ if is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case dict():
            return {key: shown(entry) for key, entry in value.items()}
        case tuple():
            return [shown(entry) for entry in value]
        case str() if "://" in value:
            return _PASSWORD.sub(HIDDEN, value)
        case _:
            return value


def _flow(value: Any) -> str:
    import yaml  # 1.2 MB, of no use to a process that shows no settings

    return (
        yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
        .removesuffix("...\n")
        .rstrip()
    )
