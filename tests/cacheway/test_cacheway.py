"""``import cacheway`` and ``python -m cacheway``."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import cacheway
import router.own_policies


def test_its_version_is_that_of_the_distribution() -> None:
    assert cacheway.__version__ == version("cacheway")


@pytest.mark.parametrize("name", sorted({*cacheway.__all__} - {"Floats", "__version__"}))
def test_its_names_are_those_of_policies_of_users(name: str) -> None:
    assert getattr(cacheway, name) is getattr(router.own_policies, name)
    assert name in dir(cacheway)


def test_a_name_that_it_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'cacheway' has no attribute 'Candidate'"):
        cacheway.Candidate  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_none_of_its_parts() -> None:
    """A plug-in may import it in any process, even one with other modules of these names."""
    program = (
        "import sys; before = set(sys.modules); import cacheway; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "cacheway" in done.stdout.split()
    assert not {"router", "policies", "radix", "loadtest", "numpy"} & set(done.stdout.split())


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_it_is_the_command_line(argument: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cacheway", argument],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={},
    )
    assert done.stdout == f"{cacheway.__version__}\n"
