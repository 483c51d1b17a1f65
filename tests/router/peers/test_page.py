"""The page of other routers' flags."""

from pathlib import Path

from router.peers import peers_reference

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_written_from_the_tables() -> None:
    assert (ROOT / "docs" / "flags-of-other-routers.md").read_text() == peers_reference()
