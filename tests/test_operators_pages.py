"""The page about pressure is true of the code, and complete."""

import re
from pathlib import Path

from router.catalogue import CATALOGUE

DOCS = Path(__file__).parent.parent / "docs"


def test_the_error_codes_that_a_page_tells_clients_are_raised_somewhere() -> None:
    text = (DOCS / "pressure.md").read_text()
    codes = re.findall(r"^\| [45]\d\d \| `([a-z_]+)`", text, re.M)
    folders = ("router", "policies")
    source = "".join(path.read_text() for name in folders for path in (DOCS.parent / name).rglob("*.py"))
    assert len(codes) >= 6
    assert [code for code in codes if f'"{code}"' not in source] == []


def test_the_page_of_pressure_names_every_setting_of_the_queue_that_is_to_be_set() -> None:
    """The page leaves out spellings and details: `configuration.md` has them."""
    text = (DOCS / "pressure.md").read_text()
    left_out = {name for name in CATALOGUE if name.startswith(("queue.", "admission.")) and name not in text}
    assert left_out <= {
        "queue.default_class",
        "queue.low_values_first",
        "queue.fairness_window_s",
        "admission.backlog_target_s_max",
        "admission.kv_ratio_max",
        "admission.engine_metrics_interval_s",
        "admission.report_age_s_max",
    }
