"""Chains of boundaries; `test_residency` compares their effects with an engine, block by block."""

from radix.residency import BlocksStored
from radix.residency.boundaries import carried, chained
from radix.residency.groups import Groups
from radix.residency.runs import Rank, Run


def test_a_chain_goes_on_from_the_device_over_blocks_that_are_held_below() -> None:
    groups = Groups()
    device, below = (
        groups.lane(BlocksStored([1], None, [0] * 4, 4, 0, "full_attention", None, medium))
        for medium in ("GPU", "CPU")
    )
    run = Run(1, Rank(), None, 0, 0, 7, bytearray(), {device: 0b100011, below: 0b001100}, size=6)
    boundaries, run.chains = chained(groups, run)
    assert boundaries == 0b001111  # and not the last block, which follows a gap
    assert run.chains == (0b000011, 0b001111)
    assert [carried(run.chains, depth) for depth in (2, 4, 5)] == [0b11, 0b10, 0]
    kid = Run(2, run.rank, run, 4, 4, 8, bytearray(), {device: 0b11, below: 0b01}, size=2)
    assert chained(groups, kid)[0] == 0b01
