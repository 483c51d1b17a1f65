"""Golden bytes: every operation of the shared log with all its fields set, and a snapshot of a small fleet.

Sample values are made from the types of the fields, so a new kind of operation has one, too.
"""

from collections.abc import Callable

import msgspec
from msgspec import inspect

from loadtest.unchanged.facts import Facts, digest_of
from policies import OP_KINDS, FleetRules, FleetState, Op, encode_op
from radix import chain_bytes

ENDING = ("Left", "WorkerGone", "Finished", "Shipped", "Forget", "Trim", "EndGone")
"""Operations that take something out of a fleet; they are not applied before the snapshot."""

_TEXTS = {"detail": "{}", "url": "http://worker:8000"}
"""Fields whose text has a form."""

_BYTES = {"numbers": bytes(36)}
"""Fields whose bytes are no path: the row of one worker (`policies.state.load_rows`)."""


def facts() -> Facts:
    """Hashes of the bytes of each operation, and of a snapshot of a fleet that applied them."""
    ops: dict[str, Op] = {kind.__name__: _sample(kind) for kind in OP_KINDS}
    found = {f"op {name}": digest_of(encode_op(ops[name])) for name in sorted(ops)}
    fleet = FleetState(FleetRules())
    for op in (ops["WorkerPut"], *(ops[name] for name in sorted(ops) if name not in ENDING)):
        fleet.apply(op)
    found["snapshot"] = digest_of(b"".join(fleet.snapshot()))
    return found


def _sample(kind: type[Op]) -> Op:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    make: Callable[..., Op] = kind
    return make(*(_value(field.type, field.name, place) for place, field in enumerate(described.fields, 1)))


def _value(kind: inspect.Type, name: str, place: int) -> object:
    """Make a value of a type within its bounds: text is the field's name, numbers follow from its place."""
    match kind:
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return min(1_000 * place, kind.le or 1_000 * place)
        case inspect.FloatType():
            return min(max(place / 16, kind.ge or 0.0), kind.le or 1.0)
        case inspect.StrType():
            return _TEXTS.get(name, name)
        case inspect.BytesType():
            return _BYTES.get(name) or chain_bytes(bytes(2_048), place)
        case inspect.EnumType():
            return list(kind.cls)[-1]
        case inspect.VarTupleType() | inspect.ListType():
            items = [_value(kind.item_type, name, place)]
            return tuple(items) if isinstance(kind, inspect.VarTupleType) else items
        case inspect.TupleType():
            return tuple(_value(item_type, name, place) for item_type in kind.item_types)
        case inspect.DictType():
            return {_value(kind.key_type, name, place): _value(kind.value_type, f"{name} value", place)}
        case inspect.UnionType():
            return _value(kind.types[0], name, place)
        case _:
            return msgspec.UNSET
