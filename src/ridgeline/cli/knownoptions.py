"""What the user says of the configuration that runs: --study, --model, --gpu, --log."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.diagnosis.evidence import Known


def known_from(study: Path | None, model: str | None, gpu: str | None, logs: list[Path]) -> "Known":
    """What the user says of the configuration. Raises BadInput."""
    from ridgeline.diagnosis.evidence import Known  # noqa: PLC0415
    from ridgeline.diagnosis.known import with_configuration, with_log  # noqa: PLC0415
    from ridgeline.domain.hardware import gpu as known_gpu  # noqa: PLC0415
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415
    from ridgeline.domain.model import shape  # noqa: PLC0415

    known = Known()
    for file in logs:
        known = with_log(known, text_of(file))
    if study is not None:
        from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

        base = load_study(study).baseline
        return with_configuration(known, base.configuration, base.workload, "the study file")
    if (model is None) != (gpu is None):
        raise BadInput("--model and --gpu go together: the roofline needs both")
    if model is not None and gpu is not None:
        shape(model)
        found = Configuration(
            model, _seen_knobs(known, Knobs()), gpu=known_gpu(gpu).name,
            engine_version=_release(known.version),
        )  # fmt: skip
        known = with_configuration(known, found, None, "--model and --gpu", defaults=False)
    return known


def _seen_knobs(known: "Known", knobs: Any) -> Any:
    """The knobs that a start-up log told, for the configuration that the twin is asked about."""
    told = {
        "max_num_seqs": known.max_num_seqs,
        "max_num_batched_tokens": known.max_num_batched_tokens,
        "max_model_len": known.max_model_len, "enforce_eager": known.eager,
        "max_cudagraph_capture_size": known.capture or None,
    }  # fmt: skip
    return knobs.with_changes({k: v for k, v in told.items() if v is not None})


def _release(version: str | None) -> str | None:
    from ridgeline.domain.defaults import VERSIONS  # noqa: PLC0415

    short = None if version is None else ".".join(version.split(".")[:2])
    return short if short in VERSIONS else None


def router_of(logs: list[Path]) -> Any:
    """What a router's log tells, first of one that failed; None without any. Raises BadInput."""
    from ridgeline.diagnosis.known import router_signs  # noqa: PLC0415

    found = [signs for file in logs if (signs := router_signs(text_of(file))) is not None]
    return next((s for s in found if s.failed), found[0] if found else None)


def text_of(file: Path) -> str:
    """What a file holds. Raises BadInput."""
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadInput(f"cannot be read ({why})", where=str(file)) from None
