"""An existing Prometheus as the source: the same evidence as from the pages themselves."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.diagnosis.evidence import Known
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.live import Price
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.stored import PrometheusServer, together
from ridgeline.diagnosis.storedauth import Credentials
from ridgeline.diagnosis.storedpool import StoredPool
from ridgeline.load.address import parse_address
from ridgeline.telemetry.prometheus import parse_metrics
from support.fake_prometheus import FakePrometheus, served
from support.mock_server import MockServer, plain_stream
from support.situations import Q8
from support.staging import Staged, load, serving, stage

NOW = 1_700_000_000.0
JOB = {"job": "vllm", "instance": "gpu-host-1:8000"}
GPU = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="NVIDIA H100"} 100
DCGM_FI_PROF_SM_ACTIVE{gpu="0",modelName="NVIDIA H100"} 0.4
"""


@pytest.fixture(scope="module")
def staged() -> Staged:
    """8 slots, 40 users."""
    return stage(serving(Q8, max_num_seqs=8), load(users=40, prompt=256))


def _prometheus(staged: Staged, *labels: dict[str, str]) -> FakePrometheus:
    last = staged.pages[-1][0]
    fake = FakePrometheus(NOW + 0.4)
    for one in labels:
        for at, text in staged.pages:
            fake.scraped(text, NOW - last + at, one)
    return fake


def test_the_evidence_is_that_of_the_pages(staged: Staged) -> None:
    pages = [Snapshot(at, parse_metrics(text)) for at, text in staged.pages]
    fake = _prometheus(staged, JOB, {"job": "other", "instance": "elsewhere:1"})
    with served(fake) as url:
        server = PrometheusServer(parse_address(url), Credentials(), '{job="vllm"}')
        seen = server.look(600.0)
    assert [t.name for t in seen.targets] == ["gpu-host-1:8000"]
    (target,) = seen.targets
    mine, told = gather(target.snapshots()), gather(pages)
    assert mine.span_s == pytest.approx(told.span_s)
    for name in ("running", "waiting", "kv_use", "generation_tokens", "requests", "preemptions",
                 "histograms", "engines", "known"):  # fmt: skip
        assert getattr(mine, name) == getattr(told, name), name
    assert [f.id for f in diagnose(mine)] == [f.id for f in diagnose(told)]


def test_only_so_far_back_is_looked_at(staged: Staged) -> None:
    with served(_prometheus(staged, JOB)) as url:
        (target,) = PrometheusServer(parse_address(url), Credentials()).look(5.0).targets
    assert 4 <= target.pages[-1][0] - target.pages[0][0] + 1 <= 5.5


def test_replicas_scraped_at_other_times_stand_side_by_side(staged: Staged) -> None:
    fake = _prometheus(staged, JOB)
    last = staged.pages[-1][0]
    for at, text in staged.pages[::2]:  # half as often, and 0.3 s beside
        fake.scraped(text, NOW - last + at + 0.3, {"job": "vllm", "instance": "gpu-host-2:8000"})
    with served(fake) as url:
        seen = PrometheusServer(parse_address(url), Credentials()).look(600.0)
    both, one = gather(together(seen.targets)), gather(seen.targets[0].snapshots())
    assert both.replicas == 2
    assert both.running is not None
    assert both.running.mean == pytest.approx(16, rel=0.1)
    rates = [e.per_s(e.generation_tokens) or 0.0 for e in (both, one)]
    assert rates[0] == pytest.approx(2 * rates[1], rel=0.1)


def test_gpu_counters_are_those_of_the_engines_hosts(staged: Staged) -> None:
    fake = _prometheus(staged, JOB)
    for host, util in (("gpu-host-1", "100"), ("gpu-host-9", "3")):
        fake.scraped(GPU.replace("100", util), NOW - 2, {"job": "dcgm", "instance": f"{host}:9400"})
    with served(fake) as url:
        seen = PrometheusServer(parse_address(url), Credentials()).look(600.0)
        other = PrometheusServer(
            parse_address(url), Credentials(), None, '{instance="gpu-host-9:9400"}'
        )
        asked = other.look(600.0)
    page, chosen = seen.gpu_page(), asked.gpu_page()
    assert page is not None
    assert chosen is not None
    (gpu,) = gather(seen.targets[0].snapshots(), gpu_pages=[page]).gpus
    assert (gpu.utilisation, gpu.sm_active) == (1.0, 0.4)
    assert gather([], gpu_pages=[chosen]).gpus[0].utilisation == pytest.approx(0.03)


def test_gpus_of_other_hosts_are_named_and_not_taken(staged: Staged) -> None:
    fake = _prometheus(staged, JOB)
    fake.scraped(GPU, NOW - 2, {"job": "dcgm", "instance": "far-away:9400"})
    with served(fake) as url:
        seen = PrometheusServer(parse_address(url), Credentials()).look(600.0)
    assert (seen.gpu_page(), seen.elsewhere) == (None, ("far-away",))


def test_a_secret_in_a_label_is_masked(staged: Staged) -> None:
    key = "sk-" + "a1B2" * 8
    with served(_prometheus(staged, {**JOB, "api_key": "hunter2-hunter2", "team": key})) as url:
        (target,) = PrometheusServer(parse_address(url), Credentials()).look(600.0).targets
    assert key not in repr(target)
    assert "hunter2" not in repr(target)


def test_watch_sees_targets_and_those_that_are_down(staged: Staged) -> None:
    fake = _prometheus(staged, JOB, {"job": "vllm", "instance": "gone:8000"})
    fake.scraped("up 0\n", NOW + 0.2, {"job": "vllm", "instance": "gone:8000"})
    fake.scraped("up 1\n", NOW + 0.2, JOB)
    fake.scraped(GPU, NOW - 2, {"job": "dcgm", "instance": "gpu-host-1:9400"})
    with (
        served(fake) as url,
        StoredPool(PrometheusServer(parse_address(url), Credentials()), period_s=5, known=Known(),
                   price=Price(4.0), slo=None) as pool,
    ):  # fmt: skip
        gone, here = pool.now()
        kept = pool.replicas
    assert (gone.up, gone.trouble) == (False, "Prometheus cannot read it")
    assert here.up
    assert here.findings[0].id == "batch-ceiling"
    assert here.usd_per_million_output_tokens
    assert here.evidence is not None
    assert here.evidence.gpu_mean("sm_active") == 0.4
    assert parse_metrics(kept[1].last_text).total("vllm:num_requests_running") == 8


def test_the_command_and_its_kept_pages(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pages = tmp_path / "d.json", tmp_path / "pages"
    with served(_prometheus(staged, JOB)) as url:
        arguments = ["doctor", "--prometheus", url, "--match", '{job="vllm"}']
        assert ridgeline([*arguments, "--json", str(out), "--save", str(pages)]) == 0
        assert ridgeline(["watch", "--prometheus", url, "--for", "2"]) == 0
    shown = capsys.readouterr().out
    assert "gpu-host-1:8000: TWIN: a digital twin" in shown  # whose pages these are
    assert "gpu-host-1:8000: the slots are full" in shown
    first = json.loads(out.read_text())["findings"][0]
    assert first["id"] == "batch-ceiling"
    named = [word for file in sorted(pages.iterdir()) for word in ("--from", str(file))]
    assert ridgeline(["doctor", *named, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["id"] == "batch-ceiling"


NONE = 'that match {job="sglang"} in the last'
REFUSED = "refuses the query (parse error"


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("doctor", ["--match", '{job="sglang"}'], "has no series of vLLM"),
        ("doctor", ["--seconds", "1", "--match", '{job="sglang"}'], f"{NONE} 1 s"),
        ("watch", ["--match", '{job="sglang"}'], f"{NONE} 300 s"),
        ("doctor", ["--match", 'job="vllm"'], "--match: is no selector"),
        ("watch", ["--match", 'job="vllm"'], "--match: is no selector"),
        ("doctor", ["--match", "{job=vllm}"], REFUSED),
        ("watch", ["--match", "{job=vllm}"], REFUSED),
        ("doctor", ["--probe"], "--probe and --gpu-metrics need the server's URL"),
        ("doctor", ["--from", "x"], "or --prometheus URL"),
        ("watch", ["http://127.0.0.1:1"], "or --prometheus URL"),
    ],
)
def test_what_is_wrong_is_one_line(
    command: str, arguments: list[str], words: str, staged: Staged,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with served(_prometheus(staged, JOB)) as url:
        assert ridgeline([command, "--prometheus", url, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["doctor", "watch"])
def test_what_is_no_prometheus(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer([plain_stream(4)], {}) as mock:
        assert ridgeline([command, "--prometheus", mock.url]) == 3
    assert "is no Prometheus (HTTP 404" in capsys.readouterr().err
    assert ridgeline([command, "--prometheus", "http://127.0.0.1:1"]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err
