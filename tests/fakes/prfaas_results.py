"""Simulations of the case study's fleets, written by hand, so that their figures can be checked."""

from dataclasses import fields
from typing import Any

import numpy as np

from loadtest.plan.prfaas.fleets import CONTENDERS, LINK
from loadtest.plan.prfaas.trials import config_of
from loadtest.simulator.records import Bounds, Floats, Records, Result, Timeline

NOTHING_SENT = (np.array([0.0, 1.0]), np.array([0.0, 0.0]))


def by_hand(
    fleet: str = "ours",
    *,
    warmup_s: float = 0.0,
    egress: tuple[Floats, Floats] = NOTHING_SENT,
    **columns: Any,
) -> Result:
    """Result of a simulation.

    Args:
        fleet: Simulated fleet.
        warmup_s: Seconds of warmup; the figures leave out its requests.
        egress: Bytes on the link so far, as times and bytes.
        columns: Columns of the records, by name; the others are 0.
    """
    given = {column.name: np.zeros(len(columns["arrival_s"])) for column in fields(Records)}
    given |= {name: np.array(values) for name, values in columns.items()}
    return Result(
        config=config_of(CONTENDERS[fleet], seed=1, warmup_s=warmup_s),
        workload_name="by hand",
        records=Records(**given),
        timeline=Timeline(*(np.zeros((0,)), *(np.zeros((0, 1)) for _ in range(3)))),
        bounds=Bounds(0.0, 0.0, 1),
        cpu_s=0.1,
        events=1,
        decisions_digest="00",
        egress={LINK: egress},
    )
