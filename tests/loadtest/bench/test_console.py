from loadtest.bench.console import measured


async def test_all_listeners_are_sent_what_changed_and_nobody_listening_costs_no_bytes() -> None:
    """Ten workers whose loads all change: some hundred bytes each second, and as many for each decision."""
    cost = await measured(10, 2, 1.5)

    assert cost.bytes_per_s > 1000
    assert (await measured(10, 0, 0.1)).bytes_per_s == 0
