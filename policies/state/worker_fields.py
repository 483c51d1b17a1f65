"""A worker's entry in the log: the newest word on each field and each label counts.

An entry is a `WorkerPut`. One without stamps adds a worker, and begins a *generation* of it: all of its
fields have the time and the writer of the entry. A change carries the whole entry, the generation that it
changes, and a stamp for each field and each label that was changed since:

    add           zone=a role=plain                          generation (1, static)
    one drains it zone=a role=plain drains      drains: (5, one)
    two labels it zone=b role=plain             zone: (5, two)
    merged        zone=b role=plain drains      drains: (5, one), zone: (5, two)

So any number of writers may change one worker at once, and none of their changes is lost; two changes of one
field leave the newer one. A label that was taken away keeps its stamp. The newer of two generations counts
whole. Merging commutes, associates and repeats harmlessly.

A version that knows no stamps takes the newest entry whole, and begins a generation with each of its own.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.state.ops import LABEL_STAMPS_MAX, WorkerPut
from radix import LABELS_MAX

Stamp = tuple[int, str]
"""Log time and replica."""

GENERATION = ""
"""Name of the stamp that tells which generation an entry changes."""

FIELDS = ("role", "draining", "capacity_tokens", "leaving", "ranks")
"""Fields with a stamp of their own; ``drain_us`` goes with ``draining``, and the URL with the generation."""


def generation_of(put: WorkerPut) -> Stamp:
    """Return which generation of a worker an entry begins or changes."""
    return put.stamps.get(GENERATION, (put.at_us, put.replica))


def changed(
    put: WorkerPut, at_us: int, replica: str, fields: Mapping[str, Any], labels: Mapping[str, str] | None
) -> WorkerPut:
    """Return an entry with some fields and labels changed.

    Args:
        put: The entry as it is known.
        at_us: Log time of the change, greater than that of the entry.
        replica: The replica that changes it.
        fields: New values of some of `FIELDS`, and of ``drain_us``.
        labels: All labels that it is to have; those that differ are changed. None leaves them.
    """
    stamp = at_us, replica
    labels = put.labels if labels is None else labels
    differing = {name for name in {*put.labels, *labels} if put.labels.get(name) != labels.get(name)}
    return msgspec.structs.replace(
        put,
        **fields,
        at_us=at_us,
        replica=replica,
        labels=dict(labels),
        knows={},
        stamps={
            **put.stamps,
            GENERATION: generation_of(put),
            **{name: stamp for name in FIELDS if name in fields},
        },
        label_stamps={**put.label_stamps, **dict.fromkeys(differing, stamp)},
    )


def merged(one: WorkerPut, two: WorkerPut) -> WorkerPut:
    """Return the merged entry of two entries of one worker."""
    generation = generation_of(one)
    if generation != generation_of(two):
        return max(one, two, key=generation_of)
    first, second = (one, two) if (one.at_us, one.replica) >= (two.at_us, two.replica) else (two, one)
    values: dict[str, Any] = {}
    stamps: dict[str, Stamp] = {GENERATION: generation}
    for name in FIELDS:
        stamp, value, drain_us = max(
            (put.stamps.get(name, generation), getattr(put, name), put.drain_us) for put in (first, second)
        )
        values[name] = value
        if name == "draining":
            values["drain_us"] = drain_us if value else 0
        if stamp != generation:
            stamps[name] = stamp
    values["leaving"] = values["leaving"] and values["draining"]
    said: dict[str, tuple[Stamp, bool, str]] = {}
    for name in {*first.labels, *second.labels, *first.label_stamps, *second.label_stamps}:
        said[name] = max(
            (put.label_stamps.get(name, generation), name in put.labels, put.labels.get(name, ""))
            for put in (first, second)
        )
    # Beyond the bounds the oldest labels stay, and those that were taken away last.
    there = sorted((stamp, name, value) for name, (stamp, is_there, value) in said.items() if is_there)
    gone = sorted((stamp, name) for name, (stamp, is_there, _) in said.items() if not is_there)
    there = there[:LABELS_MAX]
    gone = [entry for entry in gone if entry[0] != generation][-(LABEL_STAMPS_MAX - LABELS_MAX) :]
    label_stamps = {name: stamp for stamp, name, _ in there if stamp != generation}
    label_stamps |= {name: stamp for stamp, name in gone}
    if len(stamps) == 1 and not label_stamps and generation == (first.at_us, first.replica):
        stamps = {}
    return msgspec.structs.replace(
        first,
        url=max(first.url, second.url),
        **values,
        labels={name: value for _, name, value in there},
        knows={},
        stamps=stamps,
        label_stamps=label_stamps,
    )
