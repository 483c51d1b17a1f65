"""Orders of administrators: hostile, but never one that rightly stops the service."""

from random import Random

from loadtest.fuzz.orders import orders


def test_orders_go_to_the_admin_api_but_those_that_engines_send() -> None:
    for seed in range(300):
        wire = orders(Random(seed))
        assert (wire.listener == "data") == (b" /register_encoder_url" in wire.pieces[0])


def test_all_nouns_are_asked() -> None:
    drawn = b"".join(orders(Random(seed)).pieces[0] for seed in range(600))
    for part in (
        b"POST /workers ",
        b"PATCH /workers/",
        b"DELETE /workers/",
        b"PATCH /settings ",
        b"POST /explain ",
    ):
        assert part in drawn, part


def test_settings_are_only_rehearsed() -> None:
    for seed in range(600):
        data = orders(Random(seed)).pieces[0]
        if data.startswith(b"PATCH /settings") and data.endswith(b"}"):
            assert b'"dry_run":true' in data or b'"dry_run"' not in data
