"""``hatch_build.py``: how imports and links are renamed."""

import pytest

from hatch_build import UnclearImport, described, renamed

PARTS = frozenset({"router", "policies"})


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from router.cli import main\n", "from cacheway.router.cli import main\n"),
        ("from policies import (\n    place,\n)\n", "from cacheway.policies import (\n    place,\n)\n"),
        ("    import policies as p\n", "    import cacheway.policies as p\n"),
        ("é = 1; from router import x\n", "é = 1; from cacheway.router import x\n"),
        ('"""From router import x."""\n', '"""From router import x."""\n'),
        ('"""Run ``python -m router`` here."""\n', '"""Run ``python -m cacheway.router`` here."""\n'),
        ("from routers import x\n", "from routers import x\n"),
        ("from . import router\n", "from . import router\n"),
        ("import os\nrouter = os\n", "import os\nrouter = os\n"),
    ],
)
def test_imports_of_our_packages_are_renamed_and_nothing_else(source: str, wanted: str) -> None:
    indented = source.startswith(" ")
    text, renamed_text = (f"if True:\n{each}" if indented else each for each in (source, wanted))
    assert renamed(text, PARTS, "a.py") == renamed_text


@pytest.mark.parametrize("source", ["import router\n", "import router.cli\n", "import os, policies as p\n"])
def test_an_import_whose_uses_would_change_stops_the_build(source: str) -> None:
    with pytest.raises(UnclearImport, match=r"a\.py:1"):
        renamed(source, PARTS, "a.py")


def test_links_of_the_readme_lead_to_the_repository_or_are_left_out() -> None:
    text = (
        "See [the page](docs/a.md#b), ![a picture](docs/c.png), [elsewhere](https://x.example), [here](#y)."
    )
    assert described(text, "", "1.2") == "See the page, , [elsewhere](https://x.example), [here](#y)."
    assert described(text, "https://g.example/c", "1.2") == (
        "See [the page](https://g.example/c/blob/v1.2/docs/a.md#b), "
        "![a picture](https://g.example/c/raw/v1.2/docs/c.png), [elsewhere](https://x.example), [here](#y)."
    )
