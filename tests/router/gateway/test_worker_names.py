"""Names of workers for tenants."""

import re

from router.gateway.identity import PromptHasher
from router.gateway.worker_names import NAMES_MAX, WorkerNames


def hasher(seed: int) -> PromptHasher:
    made = PromptHasher("n")
    made.use_seed(seed)
    return made


def test_replicas_of_one_seed_give_one_name_and_others_another() -> None:
    one, two, other = (WorkerNames(hasher(seed)) for seed in (7, 7, 8))
    name = one.name_of("10.0.0.7:30000")
    assert re.fullmatch(rb"w-[0-9a-f]{12}", name)
    assert name == two.name_of("10.0.0.7:30000") == one.name_of("10.0.0.7:30000")
    assert name not in (other.name_of("10.0.0.7:30000"), one.name_of("10.0.0.8:30000"))


def test_a_new_seed_renames_all() -> None:
    made = hasher(1)
    names = WorkerNames(made)
    before = names.name_of("a:80")
    made.use_seed(2)
    assert names.name_of("a:80") != before


def test_what_is_remembered_is_bounded() -> None:
    names = WorkerNames(hasher(1))
    for number in range(NAMES_MAX + 10):
        names.name_of(f"w{number}:80")
    assert len(names._names) <= NAMES_MAX
