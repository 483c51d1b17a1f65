"""The traffic, read from small files in the recorded formats."""

import shutil
from pathlib import Path

import pytest
from fakes.study import write_traces

from loadtest.study.design import cells
from loadtest.study.traffic import ENGINES, TRAFFIC


@pytest.mark.parametrize("key", TRAFFIC)
def test_every_kind_of_traffic_is_read_and_well_formed(key: str, tmp_path: Path) -> None:
    if key.startswith("agentic") and shutil.which("zstd") is None:
        pytest.skip("needs the zstd command")
    workload = TRAFFIC[key].load(write_traces(tmp_path), 1)

    workload.check()
    assert workload.request_count > 10


def test_cells_name_traffic_and_engines_that_exist() -> None:
    assert {cell.traffic for cell in cells()} <= set(TRAFFIC)
    assert {cell.engine for cell in cells()} <= set(ENGINES)
