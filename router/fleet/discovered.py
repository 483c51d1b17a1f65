"""Labels that say how a worker came, which the gateway alone writes.

    discovered   kubernetes:NAMESPACE/POD                                  for people, and to tell whose it is
    discovery    {"uid", "version", "scope", "drained", "said"} as JSON    for the replicas among each other
    registered   encoder                                                   it registered itself, and may leave

A worker's entry in the log is changed by discovery on several replicas, by people and by the slow loop. The
note says which state of the pod is in it already: who knows an older one leaves it alone, and who
knows a newer one changes what the pod changed, and nothing else. So nobody needs a leader, a replica whose
view is old does no harm, and what people say stays.

Who changes a worker by hand keeps these labels (`kept`), cannot add one of them, and takes over its drain:
discovery ends only drains that are its own.
"""

from collections.abc import Mapping

import msgspec

DISCOVERED_LABEL = "discovered"
NOTE_LABEL = "discovery"
REGISTERED_LABEL = "registered"
ORIGIN_LABELS = frozenset((DISCOVERED_LABEL, NOTE_LABEL, REGISTERED_LABEL))


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of the pod behind a worker.

    Attributes:
        uid: Of the pod: another pod at the same address, or with the same name, has another one.
        version: Its ``resourceVersion`` when this was said; they are ordered (KEP-5504).
        scope: Who looks after it (`router.discovery.Selection.scope`).
        drained: Why discovery drains it: ``not_ready`` or ``deleting``; empty if it does not.
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
    """The label's value."""
    return _encoder.encode(note).decode()


def note_of(labels: Mapping[str, str]) -> Note | None:
    """The note at a worker; None if discovery did not make it, or the note cannot be read."""
    text = labels.get(NOTE_LABEL)
    if text is None or DISCOVERED_LABEL not in labels:
        return None
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return None


def kept(known: Mapping[str, str], labels: Mapping[str, str], *, drain_said: bool) -> dict[str, str]:
    """Labels that somebody gives a worker by hand, with those that say how it came.

    Args:
        known: Those that it has.
        labels: Those that it is to have.
        drain_said: Whether they also say whether it drains, which is theirs from then on.
    """
    origin = {name: known[name] for name in (REGISTERED_LABEL,) if name in known}
    note = note_of(known)
    if note is not None:
        if drain_said and note.drained:
            note = msgspec.structs.replace(note, drained="")
        origin |= {DISCOVERED_LABEL: known[DISCOVERED_LABEL], NOTE_LABEL: note_text(note)}
    return {**{name: value for name, value in labels.items() if name not in ORIGIN_LABELS}, **origin}
