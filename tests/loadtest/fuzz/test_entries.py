"""Entries of the log: all kinds of operations, at their bounds and beyond, and bytes that are none."""

from random import Random

from loadtest.fuzz.entries import EVIL, KINDS, entries, operation
from policies import decode_ops


def test_all_kinds_of_operations_are_made() -> None:
    tags = {operation(Random(seed))[0] for seed in range(1_000)}
    assert {kind.__struct_config__.tag for kind in KINDS} <= tags


def test_some_are_applied_and_some_are_skipped() -> None:
    """A fuzzer of which everything is refused at the door tests the door alone."""
    applied = skipped = 0
    for seed in range(400):
        for command in entries(Random(seed)).commands:
            if command[0] == "XADD" and "o" in command:
                data = command[command.index("o") + 1]
                if isinstance(data, bytes):
                    ops, unknown, invalid = decode_ops(data)
                    applied += len(ops)
                    skipped += unknown + invalid
    assert applied > 100
    assert skipped > 100


def test_no_operation_names_what_the_fleet_has() -> None:
    for seed in range(300):
        for op in decode_ops(_entry_of(seed)).ops:
            worker = getattr(op, "worker", EVIL)
            assert "127.0.0.1" not in worker or worker.endswith(":9")


def _entry_of(seed: int) -> bytes:
    for command in entries(Random(seed)).commands:
        if "o" in command:
            data = command[command.index("o") + 1]
            return data if isinstance(data, bytes) else b""
    return b""


def test_the_other_keys_get_junk() -> None:
    keys = {command[1] for seed in range(400) for command in entries(Random(seed)).commands}
    assert {"key:log", "key:snap", "key:lease", "key:replicas", "key:probe", f"key:replica:{EVIL}"} <= keys
