"""Images in a twin's prompts: as many more tokens to prefill as the model makes of them."""

from dataclasses import replace

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.model import shape
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.vision import ImageGrid, image_tokens
from ridgeline.domain.workload import (
    Arrivals,
    Images,
    Lengths,
    Outputs,
    Prompts,
    TrafficClass,
    Workload,
)  # fmt: skip
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine, twin_of
from ridgeline.experiment.capacity import memory_of, prompt_tokens
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.studyfile import parse_study

SEES = "Qwen/Qwen3-VL-4B-Instruct"
LOAD = Workload(
    Arrivals(users=1), Prompts(Lengths(100)), Outputs(Lengths(8)), duration_s=2.0, warmup_s=0.0
)


def prompts_of(workload: Workload, model: str = SEES) -> MemorySink:
    sink = MemorySink()
    configuration = Configuration(model, Knobs(max_model_len=16384), gpu="H200-SXM")
    with TwinEngine().start(configuration) as endpoint:
        endpoint.drive(DrivePlan(draw_schedule(workload), "images"), sink, SilentWatch())
    return sink


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (512, 512, 256),  # 16 x 16 tokens of 32 x 32 pixels
        (1024, 768, 768),  # 32 x 24
        (500, 500, 256),  # 500 / 32 = 15.6: rounded up
        (64, 64, 64),  # below 256 x 256 pixels: enlarged to it
        (8192, 8192, 16384),  # above 4096 x 4096: shrunk to it
    ],
)
def test_tokens_of_an_image_by_qwen3_vls_own_rule(width: int, height: int, tokens: int) -> None:
    grid = shape(SEES).image_grid
    assert grid == ImageGrid(32, 65_536, 16_777_216)
    assert grid.tokens(width, height) == tokens
    # two markers around each
    assert image_tokens(Images(3, width, height), grid, SEES) == 3 * (tokens + 2)


def test_images_are_prefilled_and_the_first_token_waits_for_them() -> None:
    pictured = replace(LOAD, prompts=replace(LOAD.prompts, images=Images(4, 1024, 1024)))
    plain, seen = prompts_of(LOAD), prompts_of(pictured)
    assert {r.prompt_tokens for r in plain.requests} == {100}
    assert {r.prompt_tokens for r in seen.requests} == {100 + 4 * (1024 + 2)}
    first = [
        min((r.first_ns or 0) - (r.sent_ns or 0) for r in sink.requests) for sink in (plain, seen)
    ]
    # 4104 tokens x 7.3 GFLOP at no more than 989 TFLOP/s
    assert first[1] - first[0] > 30e6
    assert seen.step_table is not None
    assert int(seen.step_table.prefill_tokens.sum()) >= 4204 * (len(seen.requests) - 1)


def test_classes_have_images_of_their_own() -> None:
    kinds = (
        TrafficClass("text", 0.5, LOAD.prompts, LOAD.outputs),
        TrafficClass("sight", 0.5, replace(LOAD.prompts, images=Images()), LOAD.outputs),
    )
    lengths = {r.prompt_tokens for r in prompts_of(replace(LOAD, classes=kinds)).requests}
    assert lengths == {100, 100 + 258}


def test_memory_counts_images_and_a_calibration_does_not_count_them_twice() -> None:
    pictured = replace(LOAD, prompts=replace(LOAD.prompts, images=Images(4, 1024, 1024)))
    configuration = Configuration(SEES, Knobs(max_model_len=16384), gpu="H200-SXM")
    twin = twin_of(configuration)
    assert prompt_tokens(twin.shape, LOAD) == 100
    assert prompt_tokens(twin.shape, pictured) == 100 + 4 * 1026
    plain, seen = (memory_of(twin, load).requests for load in (LOAD, pictured))
    assert plain / seen == pytest.approx((100 + 4 * 1026 + 8) / 108)


def test_a_model_whose_images_are_not_known_is_told_what_to_say() -> None:
    blind = replace(LOAD, prompts=replace(LOAD.prompts, images=Images()))
    with pytest.raises(BadInput, match="how many tokens an image is for Qwen/Qwen3-4B"):
        prompts_of(blind, "Qwen/Qwen3-4B")
    told = replace(blind, prompts=replace(LOAD.prompts, images=Images(2, tokens=576)))
    assert {r.prompt_tokens for r in prompts_of(told, "Qwen/Qwen3-4B").requests} == {1252}


def test_a_study_file_says_it_with_its_line() -> None:
    text = (
        "name: sight\nmodel: Qwen/Qwen3-4B\nhardware: {gpu: H200-SXM, count: 1}\n"
        "workload:\n  arrivals: {users: 1}\n  prompts: {tokens: 9, images: {count: 1}}\n"
    )
    with pytest.raises(BadInput, match=r"study.yaml:6: .*how many tokens .*tokens: N"):
        parse_study(text, "study.yaml")
    assert parse_study(text.replace("count: 1}}", "count: 1, tokens: 9}}"), "study.yaml")
