"""Several models in one pool: sums, rules and the view are of each; alerts say what to do."""

import io
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.watchpage import view
from ridgeline.diagnosis.alertrules import ALERTS, rules, write_rules
from ridgeline.diagnosis.exporter import render
from ridgeline.diagnosis.live import Now, Pool
from ridgeline.load.address import parse_address
from support.metricserver import serving_page

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting}
"""
SERVED = (("qwen", 3, 1), ("qwen", 4, 0), ("llama", 50, 20))


@pytest.fixture(scope="module")
def rows() -> list[Now]:
    """Two replicas of qwen, one of llama that has just gone, and one that nobody ever read."""
    with ExitStack() as stack:
        llama = stack.enter_context(ExitStack())
        urls = [
            (llama if model == "llama" else stack).enter_context(
                serving_page(PAGE.format(model=model, running=running, waiting=waiting).encode())
            )
            for model, running, waiting in SERVED
        ]
        addresses = [parse_address(url) for url in (*urls, "http://127.0.0.1:1")]
        pool = stack.enter_context(Pool(addresses, {}, period_s=0.1))
        end = time.monotonic() + 20
        while sum(row.up for row in pool.now()) < len(SERVED):
            assert time.monotonic() < end
            time.sleep(0.05)
        both = pool.now()
        llama.close()
        while sum(row.up for row in pool.now()) == len(SERVED):
            assert time.monotonic() < end
            time.sleep(0.05)
        gone = pool.now()
    # also of one that is down
    assert [row.model for row in gone] == ["qwen", "qwen", "llama", None], (
        "also of one that is down"
    )
    return both


def _told(text: str, name: str) -> dict[str, float]:
    found = [s for f in text_string_to_metric_families(text) for s in f.samples if s.name == name]
    return {s.labels.get("model", ""): s.value for s in found}


def test_sums_are_of_one_model(rows: list[Now]) -> None:
    text = render(rows)
    assert _told(text, "ridgeline_pool_running_requests") == {"qwen": 7, "llama": 50}
    assert _told(text, "ridgeline_pool_waiting_requests") == {"qwen": 1, "llama": 20}
    assert _told(text, "ridgeline_pool_replicas") == {"qwen": 2, "llama": 1, "": 1}
    assert _told(text, "ridgeline_pool_up") == {"qwen": 2, "llama": 1, "": 0}
    of = {(s.labels["replica"], s.labels["model"]) for f in text_string_to_metric_families(text)
          for s in f.samples if s.name == "ridgeline_replica_model_info"}  # fmt: skip
    assert of == {(row.name, row.model or "") for row in rows}


def test_the_view_sums_each_model_and_only_where_there_are_several(rows: list[Now]) -> None:
    def shown(some: list[Now]) -> str:
        target = Console(width=100, record=True, file=io.StringIO())
        target.print(view(some, 100))
        return target.export_text()

    assert "qwen: 2 of 2 answer, 7 running, 1 waiting" in shown(rows)
    assert "llama: 1 of 1 answer, 50 running, 20 waiting" in shown(rows)
    assert "qwen:" not in shown(rows[:2])


def test_rules_hold_a_replica_against_those_of_its_model() -> None:
    told = {r["record"]: r["expr"] for g in rules()["ridgeline-recording.yml"]["groups"]
            for r in g["rules"]}  # fmt: skip
    for name in ("ridgeline:pool_imbalance_index", "ridgeline:pool_share_of_bound"):
        assert "by (model)" in told[name]
        assert "avg(" not in told[name]


def test_an_alert_says_what_to_do_and_links_it_where_that_is(tmp_path: Path) -> None:
    base = "https://wiki.example.com/ops/ridgeline-runbook.md"
    assert ridgeline(["watch", "--write-rules", str(tmp_path / "a"), "--runbook-url", base]) == 0
    write_rules(tmp_path / "b")
    text = (tmp_path / "a/ridgeline-runbook.md").read_text()
    for folder, links in (("a", True), ("b", False)):
        body = yaml.safe_load((tmp_path / folder / "ridgeline-alerts.yml").read_text())
        alerts = [rule for g in body["groups"] for rule in g["rules"]]
        assert len(alerts) == len(ALERTS) == 7
        for alert in alerts:
            told = alert["annotations"]
            assert "`ridgeline " in told["description"]
            assert "runbook" not in told, "a path inside a checkout opens nowhere"
            assert ("runbook_url" in told) == links
            if links:
                page, _, anchor = told["runbook_url"].partition("#")
                assert page == base
                assert f'<a id="{anchor}"></a>' in text


@pytest.mark.parametrize("url", ["docs/doctor.md", "ftp://x/y", "https://x/y#z"])
def test_a_link_that_opens_nowhere_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rules"
    assert ridgeline(["watch", "--write-rules", str(out), "--runbook-url", url]) == 2
    assert "is no address for links" in capsys.readouterr().err
    assert not out.exists()
    assert ridgeline(["watch", "http://127.0.0.1:1", "--runbook-url", "https://x/y"]) == 2
    assert "give --write-rules DIR too" in capsys.readouterr().err
