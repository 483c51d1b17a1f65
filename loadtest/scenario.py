"""Scenarios of a demo, and their engines: the built-in workload, or a window of a trace.

Both put two replicas before four engines. A trace, and the modelled time of its engines, runs ``speed`` times
faster than recorded, so that queues are those of the recorded hour; figures are in the trace's own time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.engine import EngineSettings
from loadtest.replay import Script
from loadtest.traces import PromptText, TraceError, cut_window, read_trace, spread_arrivals
from loadtest.workload import MODEL, QUICK, TracedRequest, WorkloadShape, agent_sessions

ENGINES = 4

AGENT_ENGINE = EngineSettings(
    models=(MODEL,),
    cache_tokens=280_000,
    prefill_tokens_per_s=40_000.0,
    context_tokens=140_000.0,
    tpot_ms=20.0,
    emit_interval_ms=25.0,
)
"""An engine of the built-in workload.

40,000 prefill tokens/s is the order of one 8-GPU worker with a large mixture-of-experts model (SGLang reports
52,300 per node, https://lmsys.org/blog/2025-05-05-large-scale-ep/). The cache is small, like the sessions.
"""

TRACE_ENGINE = EngineSettings(
    models=(MODEL,), cache_tokens=2_000_000, prefill_tokens_per_s=20_000.0, emit_interval_ms=100.0
)
"""An engine of a trace: four are about half busy with the public conversation trace at its own speed."""

TRACE_WINDOW_S = (0.0, 300.0)
TRACE_SPEED = 12.0
"""Five minutes in 25 s: with these one policy takes less than half of the 90 s that the whole demo may."""

TRACE_OUTPUT_TOKENS_MAX = 2048
"""The longest answer in the public trace has 2,000 tokens."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison: the same scripts for every policy, on such engines.

    Attributes:
        time_scale: Seconds of the scenario per measured second.
    """

    title: str
    scripts: Sequence[Script]
    engine: EngineSettings
    time_scale: float = 1.0

    @property
    def request_count(self) -> int:
        """Requests of one run."""
        return sum(script.turn_count for script in self.scripts)


def agent_scenario(seed: int, *, quick: bool = False) -> Scenario:
    """The built-in workload."""
    sessions = agent_sessions(QUICK if quick else WorkloadShape(), seed)
    return Scenario(f"{len(sessions)} agents' sessions, seed {seed}", sessions, AGENT_ENGINE)


def trace_scenario(path: Path, window_s: tuple[float, float], speed: float, seed: int) -> Scenario:
    """Make a scenario of a window of a trace; `TraceError` if it cannot be read, or nothing arrives in it."""
    rows = spread_arrivals(cut_window(read_trace(path), *window_s), seed)
    if not rows:
        raise TraceError(f"{path}: no request arrives in the window {window_s[0]:g}:{window_s[1]:g} s")
    text = PromptText(seed)
    scripts = [TracedRequest(row, speed, TRACE_OUTPUT_TOKENS_MAX, text) for row in rows]
    title = f"{path.name}, {window_s[0]:g} to {window_s[1]:g} s, {speed:g} times faster than recorded"
    return Scenario(title, scripts, replace(TRACE_ENGINE, speed=speed), speed)


def engine_flags(engine: EngineSettings) -> list[str]:
    """``cacheway engine`` flags for such an engine."""
    names = (
        *("block_tokens", "cache_tokens", "prefill_tokens_per_s", "prefill_base_ms", "context_tokens"),
        *("max_running", "tpot_ms", "speed", "emit_interval_ms"),
    )
    flags = ["--dialect", engine.dialect, "--served-model-name", *engine.models]
    for name in names:
        flags += [f"--{name.replace('_', '-')}", str(getattr(engine, name))]
    return flags
