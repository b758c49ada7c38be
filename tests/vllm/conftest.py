"""The real vLLM, started once for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_vllm import RealVllm, environment_folder, make_model, serve


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only `-m "vllm ..."` looks into this folder: a plain run neither collects nor imports it."""
    return None if config.getoption("markexpr").split()[:1] == ["vllm"] else True


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter that has vLLM; its absence is an error, not a skip."""
    folder = environment_folder()
    if not (folder / ".ridgeline-complete").exists():
        pytest.fail(f"no vLLM in {folder}: run scripts/vllm_cpu_env.sh (make test-vllm does it)")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def tiny_model(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with config and tokenizer, without weights."""
    return make_model(vllm_python, tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def vllm(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealVllm]:
    """A running server; a start that fails is an error with the engine's own words.

    Its first prompt is of one word, which test_server.py is about.
    """
    log = tmp_path_factory.mktemp("vllm") / "engine.log"
    with serve(vllm_python, tiny_model, log, first_prompt="a") as server:
        yield server
