"""Records of the engines are read once, in whole lines."""

from pathlib import Path

from loadtest.chaos.witness import Observer


def test_each_id_is_counted_by_role_and_told_once(tmp_path: Path) -> None:
    plain, prefill = tmp_path / "e1.journal", tmp_path / "p1.journal"
    witness = Observer({plain: "plain", prefill: "prefill"})
    assert witness.look() == {}
    plain.write_bytes(b"a\nb\na\nhal")
    prefill.write_bytes(b"b\n")
    assert witness.look() == {"a": {"plain": 2}, "b": {"plain": 1, "prefill": 1}}
    assert witness.look() == {}
    with plain.open("ab") as journal:
        journal.write(b"f\n")
    assert witness.look() == {"half": {"plain": 1}}
