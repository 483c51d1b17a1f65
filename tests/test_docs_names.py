"""Names in the pages exist: flags, settings, metrics, routes, events, links and their anchors."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from router import cli, metric_families
from router.catalogue import CATALOGUE
from router.gateway.endpoints import Endpoint
from router.metric_families import Family
from router.peers import ANSWERS, FLAGS
from router.relaying.routes import methods_of

ROOT = Path(__file__).parent.parent
FRONT = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
STUDIES = [page for folder in ("benchmarks", "*-study") for page in (ROOT / "docs").glob(f"{folder}/*.md")]
PAGES = [*FRONT, *GUIDES]

SOURCE = "".join(path.read_text() for path in sorted((ROOT / "router").rglob("*.py")))
METRICS = {family.exposed_name for family in vars(metric_families).values() if isinstance(family, Family)}
SUFFIXES = ("_bucket", "_count", "_sum")
EVENTS = {
    *re.findall(r'"([a-z]+\.[a-z_]+)"', SOURCE),
    *(f"admin.{outcome}" for outcome in ("changed", "refused", "failed")),
    *(f"{noun}.{what}" for noun in ("keys", "tokens") for what in ("loaded", "refused")),
}
"""Names that may be events: some are put together, or passed on."""

FILES = re.compile(r"^\w+\.(?:md|py|yaml|json|jsonl|html|sh|crt|key)$")


def by_page(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.relative_to(ROOT).as_posix())


def code(page: Path) -> Iterator[str]:
    """Spans and blocks of code, a logical line each."""
    text = page.read_text()
    for block in re.findall(r"^```[^\n]*\n(.*?)^```$|^((?:    [^\n]*\n)+)", text, re.M | re.S):
        yield from "".join(block).replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


# ---- flags ----------------------------------------------------------------------------------------------

SERVE = {row.flag for row in CATALOGUE.values()} | {"--config", "--help", "--help-all", "--version"}
CONFIG = SERVE | {"--reference", "--metrics-reference", "--peers-reference"}
DECLARING = {
    "cacheway keys": ["router/tenants/cli.py"],
    "cacheway engine": ["loadtest/engine/cli.py"],
    "cacheway demo": ["loadtest/demo.py"],
    "cacheway simulate": ["loadtest/simulator/cli.py", "loadtest/simulator/arguments.py"],
    "cacheway calibrate": ["loadtest/profile/cli.py"],
    "cacheway plan": ["loadtest/plan/*.py", "loadtest/simulator/arguments.py"],
    "loadtest.plan.prfaas": ["loadtest/plan/prfaas/*.py", "loadtest/simulator/arguments.py"],
    "loadtest.engine.link": ["loadtest/engine/link/__main__.py"],
    "loadtest.chaos": [f"loadtest/chaos/{name}.py" for name in ("__main__", "overload", "sites")],
    "loadtest.bench": ["loadtest/bench/**/*.py"],
    "loadtest.conformance": ["loadtest/conformance/__main__.py"],
    "loadtest.study": ["loadtest/study/*.py"],
    "loadtest.vllm": ["loadtest/vllm/__main__.py"],
    "locust": ["loadtest/locustfile.py"],
}
"""Our commands, and the modules that declare their flags."""

OF_OTHERS = {
    "docker": {"--build", "--build-arg", "--profile", "--target"},
    "helm": {"--create-namespace", "--set"},
    "sha256sum": {"--check"},
    "kubectl": {
        *("--all-pods", "--dry-run", "--from-file", "--from-literal", "--previous"),
    },
    "SGLang": {
        *("--allowed-local-media-path", "--allowed-media-domains", "--disaggregation-bootstrap-port"),
        *("--disaggregation-decode-enable-radix-cache", "--disaggregation-mode"),
        *("--dp", "--enable-dp-attention", "--enable-lora", "--max-loaded-loras", "--tp"),
        *("--enable-cache-report", "--enable-metrics", "--enable-pd-role-switch"),
        *("--encoder-only", "--encoder-register-urls", "--encoder-urls", "--language-only", "--model-path"),
        "--tokenizer-path",
    },
    "vLLM": {
        "--max-cpu-loras",
        *("--api-server-count", "--data-parallel-external-lb", "--data-parallel-size"),
        *(
            "--enable-prompt-tokens-details",
            "--kv-events-config",
            "--kv-offloading-size",
            "--kv-transfer-config",
        ),
        *("--prefix-cache-retention-interval", "--served-model-name", "--shutdown-timeout"),
    },
    "locust": {
        *("--expect-workers", "--headless", "--host", "--html", "--master", "--master-host", "--processes"),
        *("--run-time", "--users", "--worker"),
    },
    "py-spy": {"--gil"},
    "curl": {"--data"},
}


def declared(command: str) -> set[str]:
    """The flags of a command, as far as its source names them: many are made from names of fields."""
    text = "".join(path.read_text() for glob in DECLARING[command] for path in ROOT.glob(glob))
    names = re.findall(r'"([a-z][a-z0-9]*(?:[_-][a-z0-9]+)*)"', text)
    return (
        {f"--{name.replace('_', '-')}" for name in names}
        | set(re.findall(r"--[a-z][a-z0-9-]+", text))
        | {"--help"}
    )


DECLARED = {command: declared(command) for command in DECLARING}
ANY = CONFIG.union(*DECLARED.values(), *OF_OTHERS.values())
THEIRS = re.compile(r"^\| (`--[^|]*) \|", re.M)
"""Flags of other routers: the first column of a table in the page about them."""


def flags(text: str) -> set[str]:
    return {
        flag.replace("--no-", "--") if flag.replace("--no-", "--") in SERVE else flag
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)
    }


@by_page(PAGES)
def test_flags_that_a_page_names_exist(page: Path) -> None:
    named = set().union(*(flags(line) for line in code(page)))
    if page.name in ("migrating.md", "flags-of-other-routers.md"):
        named = flags(THEIRS.sub("|", page.read_text()))
    assert named - ANY - FLAGS.keys() == set()


@by_page(PAGES)
def test_flags_in_a_command_are_flags_of_that_command(page: Path) -> None:
    for line in code(page):
        for part in re.split(r"\s(?:&&|\||;)\s", line):
            for command, known in (("cacheway serve", SERVE), ("cacheway config", CONFIG), *DECLARED.items()):
                if re.match(rf"(?:python -m )?{re.escape(command)}\b", part):
                    taken = {flag for flag, row in FLAGS.items() if row.verdict != "refused"}
                    assert flags(part) - known - OF_OTHERS.get(command, set()) - taken == set(), part


@by_page(PAGES)
def test_command_lines_of_the_gateway_are_accepted(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in code(page):
        if line.startswith("cacheway serve ") and "..." not in line and "--config" not in line:
            words = shlex.split(re.sub(r"\d?>.*$|&\s*$", "", line), comments=True)
            assert cli.main(words[1:], {}, serve=lambda loaded: 0, tools={}) == 0, capsys.readouterr().err


def test_the_page_about_others_has_every_flag_of_theirs() -> None:
    text = (ROOT / "docs" / "flags-of-other-routers.md").read_text()
    assert {flag for flag in (*FLAGS, *ANSWERS) if f"`{flag}`" not in text} == set()


# ---- settings and metrics -------------------------------------------------------------------------------

KEYS = set(CATALOGUE)
SECTIONS = {key.partition(".")[0] for key in KEYS}
OF_READINESS = {"shared.degraded", "shared.warm", "shared.warming"}
"""Fields of ``/readiness``, which look like settings."""


def dotted(page: Path) -> set[str]:
    """Words such as ``queue.size``, which no file is called."""
    words = re.findall(r"`([a-z]+\.[a-z0-9_]+)`", page.read_text())
    return {word for word in words if not FILES.match(word)}


@by_page([*PAGES, *RECORDS])
def test_settings_and_metrics_that_a_page_names_exist(page: Path) -> None:
    settings = {word for word in dotted(page) if word.partition(".")[0] in SECTIONS}
    assert settings - KEYS - OF_READINESS - EVENTS == set()
    metrics = {
        next((name.removesuffix(end) for end in SUFFIXES if name.removesuffix(end) in METRICS), name)
        for name in re.findall(r"\bcacheway_[a-z_0-9]*[a-z0-9]\b(?!\*)", page.read_text())
    }
    assert metrics - METRICS == set()


@by_page(GUIDES)
def test_events_that_a_page_names_are_logged(page: Path) -> None:
    nouns = {event.partition(".")[0] for event in EVENTS} - SECTIONS
    assert {word for word in dotted(page) if word.partition(".")[0] in nouns} - EVENTS == set()


# ---- routes ---------------------------------------------------------------------------------------------

OF_ENGINES = {
    *("POST /abort_request", "POST /pd_role_switch"),
    *("POST /load_lora_adapter", "POST /v1/load_lora_adapter"),
}
"""Routes of engines, which the gateway asks."""

MADE = {"GET /openapi.json", "GET /console/assets/{}"}
"""Routes that no decorator names."""


def shape(path: str) -> str:
    """Return a path without the names of its variables."""
    return re.sub(r"\{\w+(?::path)?\}|\bID\b", "{}", path.partition("?")[0])


ROUTES = {f"{method} {shape(endpoint)}" for endpoint in Endpoint for method in methods_of(endpoint)} | {
    f"{method.upper()} {shape(path)}"
    for source in (ROOT / "router" / "admin").glob("*.py")
    for method, path in re.findall(r'\.(get|post|put|patch|delete)\(\s*"(/[^"]*)"', source.read_text())
}


@by_page(PAGES)
def test_routes_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^\s`]*)`", page.read_text())
    assert {shape(route) for route in named} - ROUTES - MADE - OF_ENGINES == set()


# ---- links ----------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub names its headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_page([*PAGES, ROOT / "CHANGELOG.md", *RECORDS, *STUDIES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@by_page([*PAGES, *RECORDS])
def test_files_of_the_code_that_a_page_names_exist(page: Path) -> None:
    for path in re.findall(
        r"`((?:router|policies|radix|loadtest|deploy|tests)/[\w/.*-]+)`", page.read_text()
    ):
        assert any(ROOT.glob(path.rstrip("/"))), path


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in GUIDES if f"({page.name}" not in index and page.name != "README.md"] == []
    records = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert [
        page.name for page in RECORDS if f"({page.name})" not in records and page.name != "README.md"
    ] == []
