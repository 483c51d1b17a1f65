"""``make site``: pages, their links, and a navigation that leaves no page out."""

from pathlib import Path

import pytest
import yaml

from deploy.website import SiteProblem, left_out, pages_of, stage, turned

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a page at the root, two below `docs/`, and a file that is no page."""
    for name in (
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/README.md",
        "docs/a/b.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# A page\n")
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "compose.yaml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("README.md", "[x](docs/a/b.md#here)", "[x](a/b.md#here)"),
        ("docs/a/b.md", "[x](../../README.md)", "[x](../index.md)"),
        ("docs/README.md", "![x](a/b.md)", "![x](a/b.md)"),
        ("docs/a/b.md", "[x](#here) [y](https://example.com/)", "[x](#here) [y](https://example.com/)"),
        ("docs/a/b.md", "[the `file`](../../deploy/compose.yaml)", "the `file`"),
        ("README.md", "```sh run\n[x](nowhere.md)\n```", "```sh\n[x](nowhere.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(checkout: Path, page: str, link: str, on_the_site: str) -> None:
    assert turned(link, checkout / page, pages_of(checkout)) == on_the_site


def test_a_link_to_a_missing_file_stops_the_build(checkout: Path) -> None:
    with pytest.raises(SiteProblem, match=r"missing\.md leads nowhere"):
        turned("[x](missing.md)", checkout / "README.md", pages_of(checkout))


def test_the_navigation_lists_each_page_but_single_decision_records(tmp_path: Path) -> None:
    names = stage(ROOT, tmp_path)
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert left_out(names, navigation) == []
    assert left_out([*names, "new.md"], navigation) == ["new.md"]
    assert left_out([name for name in names if name != "faq.md"], navigation) == ["faq.md"]
