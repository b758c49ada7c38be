"""Exported files under the platforms' own tools: schemas of Compose and Kubernetes, SkyPilot's and
Modal's packages. No platform is reached; what only it knows (quota, a node's labels) is not seen.
"""

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from ridgeline.cli.export import TARGETS
from ridgeline.cli.export import export as verb

ROOT = Path(__file__).parents[2]
FILE = ROOT / "studies" / "h100-twelve.yaml"
IMAGE = "vllm/vllm-openai:v0.21.0"


@pytest.fixture(scope="module")
def tools() -> Path:
    made = subprocess.run(
        [ROOT / "scripts" / "platform_tools_env.sh"], capture_output=True, text=True, check=True
    )
    return Path(made.stdout.strip())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled study's last experiment of one more knob each, for every platform."""
    out = tmp_path_factory.mktemp("deploy")
    assert verb(FILE, to=list(TARGETS), image=IMAGE, out=out) == 0
    return out


MIXED = """\
name: mixed
model: Qwen/Qwen3-4B
engine_version: "0.21.0"
hardware: {gpu: H100-SXM, count: 3}
launch: {router: vllm-router}
workload:
  arrivals: {rate_per_s: 20}
  classes: {chat: {share: 0.8}, batch: {share: 0.2}}
pools: {chat: {set: {data_parallel_size: 2}}, batch: {}}
"""


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pools by class, for every platform."""
    out = tmp_path_factory.mktemp("pools")
    (out / "mixed.yaml").write_text(MIXED)
    assert verb(out / "mixed.yaml", to=list(TARGETS), out=out) == 0
    return out


def ask(tools: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    # no credentials and no account: whatever the machine has is out of reach
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    return subprocess.run(
        [tools / "bin" / "python", *words], capture_output=True, text=True, env=environment,
        timeout=120, check=False,
    )  # fmt: skip


def test_composes_schema_takes_it_and_refuses_a_key_that_is_none(tools: Path, files: Path) -> None:
    schema = json.loads((tools / "compose_spec.json").read_text())
    body = yaml.safe_load((files / "compose.yaml").read_text())
    del body["name"]  # of the present specification, the packaged schema is older
    jsonschema.Draft7Validator(schema).validate(body)
    body["services"]["vllm-0"]["healthchek"] = {}
    with pytest.raises(jsonschema.ValidationError, match="healthchek"):
        jsonschema.Draft7Validator(schema).validate(body)


VALIDATE = """
import sys, yaml, kubernetes_validate
for body in yaml.safe_load_all(open(sys.argv[1])):
    print(body["kind"], kubernetes_validate.validate(body, "1.37", strict=True))
"""


def test_kubernetes_schemas_take_it_and_refuse_a_key_that_is_none(
    tools: Path, files: Path, tmp_path: Path
) -> None:
    done = ask(tools, "-c", VALIDATE, str(files / "kubernetes.yaml"), home=tmp_path)
    assert done.stdout.split() == ["Deployment", "1.37", "Service", "1.37"], done.stderr[-800:]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        (files / "kubernetes.yaml").read_text().replace("startupProbe:", "startProbe:")
    )
    done = ask(tools, "-c", VALIDATE, str(wrong), home=tmp_path)
    assert done.returncode != 0
    assert "startProbe" in done.stderr


LOAD = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(task.name, dict(resources.accelerators), task.service.min_replicas,
      task.service.initial_delay_seconds, resources.ports)
"""


def test_skypilot_loads_it_and_refuses_a_field_that_is_none(
    tools: Path, files: Path, tmp_path: Path
) -> None:
    text = (files / "skypilot.yaml").read_text()
    given = tmp_path / "given.yaml"
    given.write_text(text.replace("VLLM_API_KEY: null", 'VLLM_API_KEY: "as by --secret"'))
    done = ask(tools, "-c", LOAD, str(given), home=tmp_path)
    assert done.stdout.strip().endswith("h100-twelve {'H100': 1} 4 660 ['8000']"), done.stderr[
        -800:
    ]
    given.write_text(text.replace("readiness_probe:", "ready_probe:"))
    done = ask(tools, "-c", LOAD, str(given), home=tmp_path)
    assert done.returncode != 0
    assert "ready_probe" in done.stderr


def test_modal_loads_it(tools: Path, files: Path, tmp_path: Path) -> None:
    script = """
import runpy, sys
module = runpy.run_path(sys.argv[1])
app, serve = module["app"], module["serve"]
print(app.name, list(app.registered_functions), type(serve).__name__)
"""
    done = ask(tools, "-c", script, str(files / "modal_app.py"), home=tmp_path)
    assert done.stdout.split()[0] == "h100-twelve", done.stderr[-800:]
    assert "['serve']" in done.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        (files / "modal_app.py").read_text().replace("startup_timeout=", "start_limit=")
    )
    done = ask(tools, "-c", script, str(wrong), home=tmp_path)
    assert done.returncode != 0
    assert "start_limit" in done.stderr


def test_pools_by_class_are_taken_too(tools: Path, pools: Path, tmp_path: Path) -> None:
    schema = json.loads((tools / "compose_spec.json").read_text())
    body = yaml.safe_load((pools / "compose.yaml").read_text())
    del body["name"]
    jsonschema.Draft7Validator(schema).validate(body)
    assert len(body["services"]) == 5
    done = ask(tools, "-c", VALIDATE, str(pools / "kubernetes.yaml"), home=tmp_path)
    kinds = ["StatefulSet", "Service", "Deployment", "Service"]
    assert done.stdout.split()[::2] == kinds * 2, done.stderr[-800:]
    for name, servers in (("chat", 2), ("batch", 1)):
        text = (pools / f"skypilot-{name}.yaml").read_text()
        given = tmp_path / f"{name}.yaml"
        given.write_text(text.replace("VLLM_API_KEY: null", 'VLLM_API_KEY: "as by --secret"'))
        done = ask(tools, "-c", LOAD, str(given), home=tmp_path)
        assert done.stdout.startswith(f"mixed-{name} {{'H100': 1}} {servers} "), done.stderr[-800:]
        script = "import runpy, sys; print(runpy.run_path(sys.argv[1])['app'].name)"
        done = ask(tools, "-c", script, str(pools / f"modal_app-{name}.py"), home=tmp_path)
        assert done.stdout.strip() == f"mixed-{name}", done.stderr[-800:]
