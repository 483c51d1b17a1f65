from pathlib import Path

from loadtest.lines import whole_lines


def test_a_line_that_was_cut_off_is_taken_away_so_that_the_next_one_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert whole_lines(path) == []
    assert not path.exists()
    path.write_bytes(b'{"a":1}\n{"b":')

    assert whole_lines(path) == [b'{"a":1}']
    assert path.read_bytes() == b'{"a":1}\n'
