"""Recording and alert rules over what `ridgeline watch --serve` exports, and what to do at each.

Replicas are held against those of the same model: a pool may serve several.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ridgeline.domain.errors import BadInput

RUNBOOK = "ridgeline-runbook.md"
_OF_MODEL = "* on (job, instance, replica) group_left (model) ridgeline_replica_model_info"
_RECORDS = {
    "ridgeline:pool_output_tokens_per_second:avg5m":
        "avg_over_time(ridgeline_pool_output_tokens_per_second[5m])",
    "ridgeline:pool_waiting_share":
        "ridgeline_pool_waiting_requests / (ridgeline_pool_waiting_requests +"
        " ridgeline_pool_running_requests > 0)",
    "ridgeline:replica_requests":
        "(ridgeline_replica_running_requests + ridgeline_replica_waiting_requests) " + _OF_MODEL,
    "ridgeline:pool_imbalance_index":
        "max by (model) (ridgeline:replica_requests) /"
        " avg by (model) (ridgeline:replica_requests) > 0",
    "ridgeline:pool_share_of_bound":
        f"avg by (model) (ridgeline_replica_share_of_bound_ratio {_OF_MODEL})",
}  # fmt: skip
_WHICH = "{{ with $labels.model }} of {{ . }}{{ end }}"


@dataclass(frozen=True, slots=True)
class Alert:
    """wait: how long it must hold. summary: in Prometheus's templates. meaning, action: in words,
    `URL` standing for the replica's.
    """

    name: str
    expression: str
    wait: str
    severity: str
    summary: str
    meaning: str
    action: str


ALERTS = (
    Alert("RidgelineReplicaDown", "ridgeline_replica_up == 0", "1m", "critical",
          "{{ $labels.replica }} does not answer",
          "Its page of metrics could not be read for a minute.",
          "See whether the process runs and `curl URL/metrics` answers; `ridgeline doctor URL --log"
          " FILE` reads its log for the cause."),
    Alert("RidgelineEngineHung", "ridgeline_replica_stalled_seconds > 20", "0m", "critical",
          "{{ $labels.replica }} holds requests and takes no step",
          "Requests are in it, and no counter has moved for 20 s.",
          "`ridgeline doctor URL --log FILE` tells an engine that hangs from one that is merely"
          " busy; one that stays so has to be restarted."),
    Alert("RidgelineQueue", "ridgeline:pool_waiting_share > 0.3", "10m", "warning",
          "{{ $value | humanizePercentage }} of the requests" + _WHICH + " wait",
          "More than 30 % of the requests for a model wait, for ten minutes.",
          "`ridgeline doctor URL` of one of its replicas says what they wait for (slots, KV cache,"
          " tokens of a step, the GPU itself) and which knob to turn next."),
    Alert("RidgelineKvThrash", "ridgeline_replica_preemptions_per_second > 0.2", "5m", "warning",
          "{{ $labels.replica }} preempts requests: its KV cache is too small",
          "Requests lose their place in the KV cache and are computed again.",
          "`ridgeline doctor URL` gives the next value of the slots or of the memory's share, and"
          " what it is predicted to gain."),
    Alert("RidgelineImbalance", "ridgeline:pool_imbalance_index > 1.5 and"
          " max by (model) (ridgeline:replica_requests) >= 8", "10m", "warning",
          "the fullest replica" + _WHICH + " has {{ $value | humanize }} times the mean load",
          "One replica holds far more requests than the others of its model.",
          "`ridgeline watch URL...` shows them side by side. Look at the router's policy: sessions"
          " or prefixes that stick to a replica, or one that is slower than the others."),
    Alert("RidgelineSloMissed", "ridgeline_replica_slo_attainment_ratio < 0.95", "10m", "warning",
          "{{ $labels.replica }}: too many requests miss the TTFT limit",
          "More than 5 % of the requests miss the TTFT limit given to `watch --slo`.",
          "`ridgeline doctor URL` names what binds first; `ridgeline knee URL` measures the highest"
          " load inside the limits (it adds traffic)."),
    Alert("RidgelineIdle", "avg_over_time(ridgeline_replica_idle_ratio[1h]) > 0.7", "1h", "info",
          "{{ $labels.replica }} idles {{ $value | humanizePercentage }} of the time",
          "In more than 70 % of the last hour the engine took no step.",
          "Fewer replicas would do: `ridgeline plan FILE` says how many the traffic needs."),
)  # fmt: skip


def rules(runbook_url: str | None = None) -> dict[str, dict[str, Any]]:
    """Recording and alert rules, by the name of the file that they go into.

    runbook_url: where the runbook will be read; each alert links its own part of it.
    """
    alerts = [
        {"alert": a.name, "expr": a.expression, "for": a.wait, "labels": {"severity": a.severity},
         "annotations": _annotations(a, runbook_url)}
        for a in ALERTS
    ]  # fmt: skip
    records = [{"record": name, "expr": expression} for name, expression in _RECORDS.items()]
    return {
        "ridgeline-recording.yml": {"groups": [{"name": "ridgeline", "rules": records}]},
        "ridgeline-alerts.yml": {"groups": [{"name": "ridgeline-alerts", "rules": alerts}]},
    }


def _annotations(alert: Alert, runbook_url: str | None) -> dict[str, str]:
    """What is to be done stands in the alert itself: it reaches who has no link."""
    action = alert.action.replace("URL", "{{ $labels.replica }}") if (
        "$labels.replica" in alert.summary) else alert.action  # fmt: skip
    found = {"summary": alert.summary, "description": f"{alert.meaning} {action}"}
    if runbook_url is not None:
        found["runbook_url"] = f"{runbook_url}#{alert.name.lower()}"
    return found


def runbook() -> str:
    """The alerts as Markdown, each under an anchor that every reader of Markdown keeps."""
    parts = [
        f'<a id="{a.name.lower()}"></a>\n\n## {a.name} ({a.severity})\n\n{a.meaning}'
        f" Fires {'at once' if a.wait == '0m' else 'after ' + a.wait} on"
        f"\n\n    {a.expression}\n\n{a.action}\n"
        for a in ALERTS
    ]
    head = "# What to do at an alert of `ridgeline watch`\n\nURL: of the replica that is named.\n"
    return "\n".join((head, *parts))


def checked_runbook_url(text: str) -> str:
    """The address as links begin with it. Raises BadInput for one that no mail could open."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment or "#" in text:
        raise BadInput(
            f"{text!r} is no address for links", where="--runbook-url",
            fix=f"give where {RUNBOOK} can be read, like https://wiki.example.com/{RUNBOOK}",
        )  # fmt: skip
    return text


def write_rules(folder: Path, runbook_url: str | None = None) -> list[Path]:
    """Write the rules and the runbook; returns the files. Raises BadInput when it cannot."""
    import yaml  # noqa: PLC0415

    texts = {
        name: yaml.safe_dump(body, sort_keys=False, width=100)
        for name, body in rules(runbook_url).items()
    }
    texts[RUNBOOK] = runbook()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadInput(f"cannot be written ({why})", where=str(folder)) from None
    return [folder / name for name in texts]
