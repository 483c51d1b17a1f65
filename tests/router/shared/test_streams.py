"""Stream ids compare as Redis orders them."""

from router.shared.streams import START, parse_id, stream_id


def test_an_id_survives_the_way_there_and_back() -> None:
    assert stream_id(parse_id(b"1700000000000-42")) == "1700000000000-42"


def test_ids_are_ordered_as_numbers_and_not_as_text() -> None:
    assert START < parse_id(b"9-10") < parse_id(b"10-2") < parse_id(b"10-10")
