"""The published schemas accept what is really written, and nothing that is not."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ridgeline.cli.main import VERBS, run
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.records import MemorySink, RequestRecord, records_from_requests
from ridgeline.domain.run import ClientCheck, RunFacts, SilentWatch, Window
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.schemas import KINDS, schema_of

STUDIES = Path(__file__).parents[2] / "studies"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["schema", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def checker(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("kind", [*KINDS, "tune"])
def test_every_schema_is_a_valid_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    checker(printed(capsys, "--of", kind))


def test_the_study_schema_is_the_default_and_fits_the_bundled_studies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = checker(printed(capsys))
    files = list(STUDIES.glob("*.yaml"))
    assert files
    for path in files:
        check.validate(yaml.safe_load(path.read_text()))


def test_a_tunings_result_and_its_winner_fit_their_schemas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = {
        "name": "fits", "model": "Qwen/Qwen3-4B",
        "hardware": {"gpu": "H200-SXM", "count": 1, "price_per_gpu_hour": 4.5},
        "workload": {
            "arrivals": {"users": 40}, "duration_s": 4, "warmup_s": 2, "seed": 1,
            "prompts": {"tokens": {"min": 100, "max": 300}},
            "output_tokens": {"min": 20, "max": 60, "ignore_eos": True},
        },
        "slo": {"ttft_p95_ms": 400, "itl_p95_ms": 30},
        "baseline": {"max_num_seqs": 8, "enable_prefix_caching": False},
        "tune": {"only": True, "finalists": 1, "space": {"max_num_seqs": [8, 64]}},
    }  # fmt: skip
    file, out = tmp_path / "fits.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(study))
    assert run(["tune", str(file), "--trials", "2", "--out", str(out), "--quiet"]) == 0
    capsys.readouterr()
    check = checker(printed(capsys, "--of", "tune"))
    body = json.loads((out / "tune.json").read_text())
    check.validate(body)
    assert body["winner"]["change"] == {"max_num_seqs": 64}
    with pytest.raises(jsonschema.ValidationError):
        check.validate({**body, "winner": {**body["winner"], "runs": "three"}})
    with pytest.raises(jsonschema.ValidationError):
        check.validate({k: v for k, v in body.items() if k != "front"})
    checker(printed(capsys)).validate(yaml.safe_load((out / "winner.yaml").read_text()))


def test_every_verb_has_its_whole_line_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    shown = capsys.readouterr().out.split("Commands:\n")[1].split("\n\n")[0]
    assert "..." not in shown
    assert len([line for line in shown.splitlines() if line.strip()]) == len(VERBS), "a line each"


def test_an_unknown_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "--of", "sumary"]) == 2
    assert "did you mean 'summary'" in capsys.readouterr().err


def test_it_can_be_written_to_a_file(tmp_path: Path) -> None:
    assert run(["schema", "--out", str(tmp_path / "s.json")]) == 0
    checker(json.loads((tmp_path / "s.json").read_text()))


def test_a_twins_summary_fits() -> None:
    workload = Workload(
        Arrivals(users=8), Prompts(Lengths(32, 0.5)), Outputs(Lengths(16, 0.5)),
        duration_s=3, warmup_s=1,
    )  # fmt: skip
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=4), gpu="H100-SXM")
    sink = MemorySink()
    with TwinEngine().start(configuration) as endpoint:
        facts = endpoint.drive(DrivePlan(draw_schedule(workload), "x"), sink, SilentWatch())
    summary = summarise(
        sink.records(), facts.window, facts=facts, configuration=configuration,
        slo=parse_slo("ttft_p95_ms=2000,error_rate=0.1"),
    )  # fmt: skip
    body = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert body["source"] == "twin"
    assert body["steps"]
    checker(schema_of("summary")).validate(body)


SMALL_STUDY = """\
name: small
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, price_per_gpu_hour: 3.95}
workload:
  arrivals: {users: 16}
  prompts: {tokens: 32}
  output_tokens: {min: 8, max: 24}
  warmup_s: 1
  duration_s: 4
slo: {ttft_p95_ms: 2000, error_rate: 0.5}
baseline: {max_num_seqs: 4}
experiments:
  - {name: seqs-8, set: {max_num_seqs: 8}}
  - {name: too-small, set: {gpu_memory_utilization: 0.05}}
repeats: 3
findings:
  - id: more
    claim: more slots carry more
    compare: [seqs-8, baseline]
    ratio: [{metric: throughput.output_tokens_per_s, is: higher}]
    twin: reproduced
    because: the batch doubles
"""


def test_a_studys_result_fits(tmp_path: Path) -> None:
    """A whole study through the command line: one comparison, one experiment that fails."""
    (tmp_path / "small.yaml").write_text(SMALL_STUDY)
    target = tmp_path / "result.json"
    code = run(
        ["study", str(tmp_path / "small.yaml"), "--json", str(target), "--out", str(tmp_path / "o")]
    )
    body = json.loads(target.read_text())
    checker(schema_of("study-result")).validate(body)
    assert [r["name"] for r in body["runs"]] == ["baseline", "seqs-8", "too-small"]
    assert body["runs"][2]["summary"] is None
    assert body["findings"][0]["mark"] == "reproduced"
    assert code == 3  # one experiment could not be completed


def test_a_summary_of_failures_fits_and_a_wrong_one_does_not() -> None:
    window = Window(0, 10**9)
    lost = [
        RequestRecord(i, None, 0, 0, None, None, 5, 1, 1, failure="timeout_first")
        for i in range(200)
    ]
    summary = summarise(
        records_from_requests(lost), window,
        facts=RunFacts("measured", window, ClientCheck("kernel")),
        configuration=Configuration("m", Knobs()), slo=parse_slo("ttft_p95_ms=20"),
    )  # fmt: skip
    body = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert body["failures_as_infinite"]["ttft_s"]["p95"] == "infinite"
    assert body["slo"][0]["met"] is False
    check = checker(schema_of("summary"))
    check.validate(body)
    assert not check.is_valid(body | {"window_s": "long"})
    assert not check.is_valid(body | {"surprise": 1})
    assert not check.is_valid({k: v for k, v in body.items() if k != "ttft_s"})
