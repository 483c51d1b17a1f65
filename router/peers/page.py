"""The page ``docs/flags-of-other-routers.md``, written from the tables."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from router.peers.policies import DECODE_NAMES, POLICY_NAMES
from router.peers.rows import ROUTERS, PeerFlag
from router.peers.table import ANSWERS, FLAGS

_OPENING = f"""# Flags of other routers

Written by `cacheway config --peers-reference`; `make docs` writes it again.

Cacheway takes the command lines of sglang-router 0.3, smg 1.13 and vllm-router 0.1.17 as they are. Flags
that it has under the same name are in
[migrating.md](migrating.md#flags-of-sglang-router-smg-and-vllm-router), with the differences. The others
are here. Flags of routers with other ancestors stop the start, and the error says what to write.

`cacheway serve` logs one warning (`flags.translated`) that names the flags it took under another name and
the flags without effect; `cacheway config` prints it. A flag of no router stops the start. The error
suggests a flag of Cacheway only if the spelling is nearly the same, and never for a flag that may hold a
key.

## {", ".join(ROUTERS[:-1])} and {ROUTERS[-1]}
"""


def peers_reference() -> str:
    """The page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _OPENING
    rows = FLAGS.values()
    yield from _table("Taken under another name", "Taken as", (row for row in rows if row.verdict == "taken"))
    yield from _table(
        "Accepted, without effect", "Because", (row for row in rows if row.verdict == "accepted")
    )
    yield from _table(
        "Refused: to leave them out would be dangerous",
        "Instead",
        (row for row in rows if row.verdict == "refused"),
    )
    yield "### Policies"
    yield ""
    yield "Names that are not ours are taken as the nearest policy, with a warning."
    yield ""
    yield "| there | as `--policy` and `--prefill-policy` | as `--decode-policy` | |"
    yield "|---|---|---|---|"
    for name, (ours, why) in POLICY_NAMES.items():
        yield f"| `{name}` | `{ours}` | `{DECODE_NAMES[name][0]}` | {why} |"
    yield ""
    yield "## Routers with other ancestors"
    yield ""
    for peers, found in groupby(ANSWERS.values(), lambda row: row.peers):
        yield from _table(", ".join(peers), "Here", found, shows_peers=False)


def _table(title: str, head: str, rows: Iterable[PeerFlag], *, shows_peers: bool = True) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield f"| there | of | {head.lower()} |" if shows_peers else f"| there | {head.lower()} |"
    yield "|---|---|---|" if shows_peers else "|---|---|"
    for (says, only, peers), group in groupby(rows, lambda row: (row.says, row.only, row.peers)):
        flags = ", ".join(f"`{row.flag}`" for row in group)
        text = f"{says}; any value but {', '.join(only)} is refused" if only else says
        cells = [flags, ", ".join(peers), text] if shows_peers else [flags, text]
        yield f"| {' | '.join(cells)} |"
    yield ""
