"""``deploy/prometheus``: rules that Prometheus takes, alerts that fire when they should and not otherwise."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.write import generated
from router.metric_families import FAMILIES, Family

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"

RULES = PROMETHEUS / "rules.yaml"
ALERTS = PROMETHEUS / "alerts.yaml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: rules are not checked by Prometheus"
)

WORKER = 'namespace="n", instance="a", worker="w"'


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


@dataclass(frozen=True)
class Scenario:
    """Metrics for which an alert must fire, and metrics for which it must not.

    Attributes:
        fires: Series in promtool's notation, one value a minute.
        quiet: Likewise: near the threshold, or over before the alert's ``for`` has passed.
        minutes: Time after which the alert is evaluated.
        step: Time between two values.
    """

    fires: dict[str, str]
    quiet: dict[str, str]
    minutes: int = 30
    step: str = "1m"


def requests(good: int, bad: int, outcome: str) -> dict[str, str]:
    """Requests a minute that completed, and that ended with another outcome."""
    return {
        'cacheway_requests_total{namespace="n", instance="a", outcome="completed"}': f"0+{good}x400",
        f'cacheway_requests_total{{namespace="n", instance="a", outcome="{outcome}"}}': f"0+{bad}x400",
    }


def ttft(within_5_s: int, all_of_them: int) -> dict[str, str]:
    return {
        'cacheway_ttft_seconds_bucket{namespace="n", instance="a", le="5.0"}': f"0+{within_5_s}x400",
        'cacheway_ttft_seconds_count{namespace="n", instance="a"}': f"0+{all_of_them}x400",
    }


def gauge(metric: str, high: str, low: str) -> Scenario:
    """A gauge that stays at one value, or at another one."""
    return Scenario({metric: f"{high}x60"}, {metric: f"{low}x60"})


def brief(metric: str) -> Scenario:
    """A flag that stays, or was up for less than the alert waits."""
    return Scenario({metric: "1x60"}, {metric: "0x28 1 0x30"})


def counted(metric: str) -> Scenario:
    """A counter that goes up, or does not."""
    return Scenario({metric: "0+1x60"}, {metric: "7x60"})


def hits(today: int, yesterday: int) -> dict[str, str]:
    """Return series of 100 prompt tokens every 5 min for two days, with the cached tokens of each day."""
    return {
        'cacheway_reported_prompt_tokens_total{namespace="n"}': "0+100x576",
        'cacheway_reported_cached_tokens_total{namespace="n"}': f"0+{yesterday}x288 "
        f"{yesterday * 288 + today}+{today}x287",
    }


def predicted(cached: int, said: int) -> dict[str, str]:
    return {
        'cacheway_reported_prompt_tokens_total{namespace="n"}': "0+100x400",
        'cacheway_reported_cached_tokens_total{namespace="n"}': f"0+{cached}x400",
        'cacheway_predicted_cached_tokens_total{namespace="n"}': f"0+{said}x400",
    }


def handovers(failed: int) -> dict[str, str]:
    series = 'cacheway_handovers_total{namespace="n", protocol="nixl", outcome='
    return {series + '"completed"}': "0+100x60", series + '"prefill_failed"}': f"0+{failed}x60"}


def tokenized(late: int) -> dict[str, str]:
    """Token ids that came too late, for a number of a hundred prompts a minute."""
    series = 'cacheway_tokenizing_prompts_total{namespace="n", instance="a", how='
    return {series + '"remembered"}': f"0+{100 - late}x60", series + '"late"}': f"0+{late}x60"}


def shadow(sooner: int) -> dict[str, str]:
    """Return series of 100 decisions every 5 min, of which ``sooner`` were 0.1 s to 0.5 s sooner."""
    series = 'cacheway_shadow_ttft_difference_seconds_bucket{{namespace="n", le="{}"}}'
    counts = {"-0.5": 0, "-0.1": sooner, "0.0": 90, "+Inf": 100}
    return {series.format(bound): f"0+{count}x100" for bound, count in counts.items()}


SCENARIOS = {
    "CachewayDown": Scenario(
        {'up{job="cacheway-metrics", instance="a"}': "1x10 0x50"},
        {'up{job="cacheway-metrics", instance="a"}': "1x60", 'up{job="other", instance="b"}': "0x60"},
    ),
    "CachewayGone": Scenario(
        {"other": "1x60"}, {'cacheway_build_info{namespace="n", instance="a", version="1"}': "1x60"}
    ),
    "CachewayNoHealthyWorker": Scenario(
        {
            'cacheway_build_info{namespace="n", instance="a", version="1"}': "1x60",
            f'cacheway_worker_state{{{WORKER}, state="unhealthy"}}': "1x60",
        },
        {
            'cacheway_build_info{namespace="n", instance="a", version="1"}': "1x60",
            'cacheway_build_info{namespace="n", instance="b", version="1"}': "1x60",
            f'cacheway_worker_state{{{WORKER}, state="healthy"}}': "1x60",
        },
    ),
    "CachewayErrors": Scenario(
        requests(97, 3, "upstream_unreachable"),
        {**requests(90, 1, "upstream_unreachable"), **requests(90, 30, "client_left")},
    ),
    "CachewayRequestsRefused": Scenario(
        requests(40, 60, "worker_refused"),
        {**requests(55, 45, "worker_refused")},
    ),
    "CachewayTtftBudgetBurnsFast": Scenario(ttft(20, 100), ttft(40, 100), 120),
    "CachewayTtftBudgetBurns": Scenario(ttft(60, 100), ttft(75, 100), 380, "5m"),
    "CachewayLoopLag": Scenario(
        {
            'cacheway_event_loop_lag_seconds_bucket{namespace="n", instance="a", le="0.01"}': "0+90x60",
            'cacheway_event_loop_lag_seconds_count{namespace="n", instance="a"}': "0+100x60",
        },
        {
            'cacheway_event_loop_lag_seconds_bucket{namespace="n", instance="a", le="0.01"}': "0+97x60",
            'cacheway_event_loop_lag_seconds_count{namespace="n", instance="a"}': "0+100x60",
        },
    ),
    "CachewayQueueLong": gauge('cacheway_queue_drain_seconds{namespace="n", instance="a"}', "16", "14"),
    "CachewayTurnsAway": Scenario(requests(90, 10, "queue_full"), requests(97, 3, "request_expired")),
    "CachewayQueueOutOfOrder": Scenario(
        {
            'cacheway_queue_inversions_total{namespace="n"}': "0+10x60",
            'cacheway_waits_total{namespace="n", outcome="dispatched"}': "0+100x60",
        },
        {
            'cacheway_queue_inversions_total{namespace="n"}': "0+3x60",
            'cacheway_waits_total{namespace="n", outcome="dispatched"}': "0+100x60",
        },
    ),
    "CachewayWorkerUnhealthy": brief(f'cacheway_worker_state{{{WORKER}, state="unhealthy"}}'),
    "CachewayCircuitOpen": gauge(f"cacheway_circuit_state{{{WORKER}}}", "2", "1"),
    "CachewayRedispatches": Scenario(
        {'cacheway_redispatches_total{namespace="n", reason="x"}': "0+20x60", **requests(100, 0, "x")},
        {'cacheway_redispatches_total{namespace="n", reason="x"}': "0+5x60", **requests(100, 0, "x")},
    ),
    "CachewayReportsMissing": Scenario(
        {
            'cacheway_engine_report_failures_total{namespace="n"}': "0+6x60",
            'cacheway_engine_reports_total{namespace="n"}': "0+4x60",
        },
        {
            'cacheway_engine_report_failures_total{namespace="n"}': "0+4x60",
            'cacheway_engine_reports_total{namespace="n"}': "0+6x60",
        },
        40,
    ),
    "CachewayHitRatioFell": Scenario(hits(40, 80), hits(70, 80), 24 * 60 + 360, "5m"),
    "CachewayHitsOverpredicted": Scenario(predicted(50, 80), predicted(50, 60), 120),
    "CachewayRedisDegraded": brief('cacheway_degraded{namespace="n", instance="a", component="redis"}'),
    "CachewayLimitsDegraded": brief('cacheway_degraded{namespace="n", instance="a", component="limits"}'),
    "CachewayKeysRefused": gauge(
        'cacheway_degraded{namespace="n", instance="a", component="keys"}', "1", "0"
    ),
    "CachewayDiscoveryDegraded": brief(
        'cacheway_degraded{namespace="n", instance="a", component="kubernetes"}'
    ),
    "CachewayLogLag": gauge('cacheway_log_lag_seconds{namespace="n", instance="a"}', "1.5", "0.5"),
    "CachewayOpsDropped": counted('cacheway_ops_dropped_total{namespace="n", instance="a"}'),
    "CachewayRegistersDiffer": gauge(
        'cacheway_registers_differ{namespace="n", instance="a", register="WorkerPut"}', "2", "0"
    ),
    "CachewayOpsSkipped": Scenario(
        {'cacheway_ops_skipped_total{namespace="n", instance="a", reason="unknown_op"}': "0+1x60"},
        {'cacheway_ops_skipped_total{namespace="n", instance="a", reason="unknown_op"}': "0+1x15 16x45"},
        50,
    ),
    "CachewayLogDamaged": counted(
        'cacheway_ops_skipped_total{namespace="n", instance="a", reason="invalid"}'
    ),
    "CachewaySnapshotOld": Scenario(
        {'cacheway_snapshot_age_seconds{namespace="n", instance="a"}': "0+60x60"},
        {
            'cacheway_snapshot_age_seconds{namespace="n", instance="a"}': "0+60x60",
            'cacheway_snapshot_age_seconds{namespace="n", instance="b"}': "10x60",
        },
    ),
    "CachewaySnapshotRefused": counted('cacheway_snapshots_refused_total{namespace="n", instance="a"}'),
    "CachewayVersionsDiffer": Scenario(
        {
            'cacheway_build_info{namespace="n", instance="a", version="1"}': "1x200",
            'cacheway_build_info{namespace="n", instance="b", version="2"}': "1x200",
        },
        {
            'cacheway_build_info{namespace="n", instance="a", version="1"}': "1x200",
            'cacheway_build_info{namespace="m", instance="b", version="2"}': "1x200",
        },
        90,
    ),
    "CachewayKvEventsIncomplete": brief(f'cacheway_kv_events_worker_state{{{WORKER}, state="partial"}}'),
    "CachewayKvEventsLate": gauge(f"cacheway_kv_events_lag_seconds{{{WORKER}}}", "6", "4"),
    "CachewayKvEventsLost": Scenario(
        {'cacheway_kv_events_losses_total{namespace="n", instance="a", reason="gap"}': "0+1x60"},
        {
            'cacheway_kv_events_losses_total{namespace="n", instance="a", reason="restart"}': "0+1x60",
            'cacheway_kv_events_losses_total{namespace="n", instance="a", reason="gap"}': "0x10 2x50",
            'cacheway_kv_events_invalid_total{namespace="n", instance="a", what="batch"}': "0x20 1x40",
        },
    ),
    "CachewayTokenizingFails": Scenario(tokenized(30), tokenized(10)),
    "CachewayTokenizingMiscounts": Scenario(
        {'cacheway_tokenizing_miscounts_total{namespace="n", instance="a", model="m"}': "0+1x60"},
        {'cacheway_tokenizing_miscounts_total{namespace="n", instance="a", model="m"}': "0x10 5x50"},
    ),
    "CachewayLinkDown": brief('cacheway_link_state{namespace="n", instance="a", link="b>a", state="down"}'),
    "CachewayLinkSaturated": gauge(
        'cacheway_link_utilisation_ratio{namespace="n", instance="a", link="b>a"}', "0.99", "0.9"
    ),
    "CachewayHandoversFail": Scenario(handovers(10), handovers(3)),
    "CachewayShadowIsSooner": Scenario(shadow(60), shadow(40), 440, "5m"),
    "CachewayOwnPolicyOff": brief(
        'cacheway_own_policy_off{namespace="n", instance="a", policy="m:p", reason="late"}'
    ),
    "CachewayTenantKeysEnd": Scenario(
        {'cacheway_tenant_keys_end_timestamp_seconds{namespace="n", tenant="t"}': f"{6 * 86400}x200"},
        {'cacheway_tenant_keys_end_timestamp_seconds{namespace="n", tenant="t"}': f"{9 * 86400}x200"},
        90,
    ),
    "CachewayLogLinesDropped": counted('cacheway_log_lines_dropped_total{namespace="n", instance="a"}'),
}
"""For each alert."""


def test_every_alert_has_a_scenario_and_says_who_is_to_act() -> None:
    alerts = rules(ALERTS)
    assert {alert["alert"] for alert in alerts} == set(SCENARIOS)
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"] == f"docs/alerts.md#{alert['alert'].lower()}"


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULES), str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    """One run of promtool has a file for each alert, with only the rules that it needs."""
    recorded = {rule["record"]: rule for rule in rules(RULES)}
    files = []
    for alert in rules(ALERTS):
        name, scenario = alert["alert"], SCENARIOS[alert["alert"]]
        needed = [rule for record, rule in recorded.items() if record in alert["expr"]]
        (tmp_path / f"{name}.rules.yaml").write_text(
            yaml.safe_dump({"groups": [{"name": name, "rules": [*needed, alert]}]})
        )
        tests = [
            {
                "name": f"{name} {'fires' if fires else 'is quiet'}",
                "interval": scenario.step,
                "input_series": [{"series": each, "values": values} for each, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                        "eval_time": f"{scenario.minutes}m",
                        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                    }
                ],
            }
            for fires, series in ((True, scenario.fires), (False, scenario.quiet))
        ]
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(
            yaml.safe_dump(
                {
                    "rule_files": [f"{name}.rules.yaml"],
                    "evaluation_interval": scenario.step,
                    "tests": tests,
                }
            )
        )
    done = subprocess.run(
        ["promtool", "test", "rules", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_that_rules_ask_for_exists() -> None:
    recorded = {rule["record"] for rule in rules(RULES)}
    for rule in (*rules(RULES), *rules(ALERTS)):
        assert metrics_of(rule["expr"]) <= METRICS
        assert set(re.findall(r"\bcacheway:[a-z0-9_:]+", rule["expr"])) <= recorded
    adapter = yaml.safe_load((PROMETHEUS / "adapter-rules.yaml").read_text())["externalRules"]
    for rule in adapter:
        assert set(re.findall(r"\bcacheway:[a-z0-9_:]+", rule["seriesQuery"])) <= recorded


def exposed(family: Family) -> set[str]:
    """Return the names of a metric's series."""
    name = family.exposed_name
    return {f"{name}_{part}" for part in ("bucket", "sum", "count")} if family.kind == "histogram" else {name}


METRICS = {name for family in FAMILIES for name in exposed(family)}


def metrics_of(expr: str) -> set[str]:
    """Return our metrics that an expression names."""
    return set(re.findall(r"\bcacheway_[a-z0-9_]+", expr))


@pytest.mark.parametrize("path", sorted(generated()), ids=lambda path: path.name)
def test_generated_files_are_as_their_sources_say(path: Path) -> None:
    assert path.read_text() == generated()[path], "write it again: python -m deploy.write"


def test_the_runbook_has_a_section_for_every_alert_and_for_no_other() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text()
    sections = dict(re.findall(r"^### (Cacheway\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S))
    assert sections.keys() == SCENARIOS.keys()
    for name, section in sections.items():
        for part in ("**Means.**", "**Users**", "**Look**", "**Do**"):
            assert part in section, f"{name} does not say: {part}"
