"""Which listed name a request's model goes by."""

import pytest

from router.fleet.engine_info import ServedModel
from router.fleet.model_names import Lists, UnlistedModels, adapter_of, listed_as

ONE: Lists = ((ServedModel("m", root="m"), ServedModel("alias", root="m"), ServedModel("ad", parent="m")),)
TWO: Lists = (*ONE, (ServedModel("n"),))


@pytest.mark.parametrize(
    ("lists", "rule", "name", "listed"),
    [
        (ONE, "single", "m", "m"),
        (ONE, "single", "alias", "alias"),
        (ONE, "single", "ad", "ad"),
        (ONE, "single", "default", "m"),
        (ONE, "single", "", "m"),
        (ONE, "single", "m:ad1", "m"),
        (ONE, "refuse", "m:ad1", "m"),
        (ONE, "refuse", "default", "default"),
        (ONE, "refuse", "", ""),
        (TWO, "single", "default", "default"),
        (TWO, "single", "", ""),
        (TWO, "single", "n:ad1", "n"),
        (TWO, "single", "n:", "n:"),
        (TWO, "any", "default", None),
        (TWO, "any", "", None),
        (TWO, "any", "n", "n"),
        ((ONE[0], ONE[0]), "single", "default", "m"),
        ((), "single", "m", "m"),
        ((), "single", "", None),
    ],
)
def test_a_model_goes_by_a_name_that_workers_list(
    lists: Lists, rule: UnlistedModels, name: str, listed: str | None
) -> None:
    assert listed_as(name, lists, rule) == listed


def test_an_adapter_stands_behind_its_base() -> None:
    assert [adapter_of(*pair) for pair in (("m:a", "m"), ("m", "m"), ("default", "m"), ("m:a", None))] == [
        "a",
        "",
        "",
        "",
    ]
