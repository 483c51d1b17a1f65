"""Labels of a worker's origin, which only the gateway writes.

    discovered   kubernetes:NAMESPACE/POD                                  for people, and to tell its owner
    discovery    {"uid", "version", "scope", "drained", "said"} as JSON    for the replicas among each other
    registered   encoder                                                   it registered itself, and may leave

The note in a worker's entry holds the version of the pod that is in the entry: a replica
with an older view leaves it alone, one with a newer view changes only the pod's changes, so no leader is
needed. A manual change keeps these labels (`kept`) and takes over the drain.
"""

from collections.abc import Mapping

import msgspec

DISCOVERED_LABEL = "discovered"
NOTE_LABEL = "discovery"
REGISTERED_LABEL = "registered"
ORIGIN_LABELS = frozenset((DISCOVERED_LABEL, NOTE_LABEL, REGISTERED_LABEL))


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pod behind a worker, as of its last operation.

    Attributes:
        uid: Id of the pod; another pod at the same address or with the same name has another one.
        version: Its ``resourceVersion``; they are ordered (KEP-5504).
        scope: Scope of the selection that manages it (`router.discovery.Selection.scope`).
        drained: Reason of discovery's drain: ``not_ready`` or ``deleting``; empty for none.
        said: Role, capacity and labels as the pod had them.
    """

    uid: str
    version: int
    scope: str
    drained: str = ""
    said: dict[str, str] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Note)


def note_text(note: Note) -> str:
    """Encode a note as the label's value."""
    return _encoder.encode(note).decode()


def note_of(labels: Mapping[str, str]) -> Note | None:
    """Decode a worker's note; None if discovery did not make the worker, or the note cannot be read."""
    text = labels.get(NOTE_LABEL)
    if text is None or DISCOVERED_LABEL not in labels:
        return None
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return None


def kept(known: Mapping[str, str], labels: Mapping[str, str], *, drain_said: bool) -> dict[str, str]:
    """Merge a manual change's labels with those of origin; `drain_said` makes the drain manual, too."""
    origin = {name: known[name] for name in (REGISTERED_LABEL,) if name in known}
    note = note_of(known)
    if note is not None:
        if drain_said and note.drained:
            note = msgspec.structs.replace(note, drained="")
        origin |= {DISCOVERED_LABEL: known[DISCOVERED_LABEL], NOTE_LABEL: note_text(note)}
    return {**{name: value for name, value in labels.items() if name not in ORIGIN_LABELS}, **origin}
