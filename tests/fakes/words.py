"""Words of any register, made from its declaration: a register that is added is tested like all others."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from fakes.decisions import CLASSES, MODELS, WORKERS
from msgspec import inspect

from policies.state.ops import Register

SUBJECTS = {"worker": WORKERS, "worker_class": CLASSES, "model": MODELS}

R = TypeVar("R", bound=Register)


def word(kind: type[R], subject: int, at_us: int, replica: str, value: int) -> R:
    """A word on one of two subjects. Words of two values, 1 to 4, differ in all their facts, or nearly all.

    Numbers are so large that no capacity bounds what a worker may hold (`fakes.naive_fold`).
    """
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    given = {"at_us": at_us, "replica": replica, kind.by: SUBJECTS.get(kind.by, ("x", "y"))[subject]}
    make: Callable[..., R] = kind
    return make(**{field.name: given.get(field.name, _of(field.type, value)) for field in described.fields})


def _of(kind: inspect.Type, value: int) -> object:
    """A value of a type, within its bounds."""
    match kind:
        case inspect.BoolType():
            return value > 2
        case inspect.IntType():
            return min(10_000 * value, kind.le or 10_000 * value)
        case inspect.FloatType():
            return min(max(value / 4, kind.ge or 0.0), kind.le or 1.0)
        case inspect.StrType():
            return str(value)
        case inspect.EnumType():
            return list(kind.cls)[value % len(kind.cls)]
        case inspect.DictType():
            return {_of(kind.key_type, value): _of(kind.value_type, value)}
        case inspect.VarTupleType():
            return (_of(kind.item_type, value),)
        case _:
            return msgspec.UNSET
