"""What is deployed, in the words of no platform: engine, replicas, GPUs, start-up, secrets.

Ridgeline measures one server process for each data-parallel replica, pinned to its GPUs. What is
exported is the same: so many servers, not one server with more processes.
"""

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Launch, Router
from ridgeline.domain.secrets import secret_name
from ridgeline.engines.vllm_args import serve_arguments

IMAGE = "vllm/vllm-openai"
ROUTER_PACKAGE = "vllm-router==0.1.17"
API_KEY = "VLLM_API_KEY"  # vLLM takes its key from there: it stands on no command line
PORT = 8000
ASSUMED_START_S = 300.0  # without a measured start: a download, a first compilation
MARGIN_S = 60.0
LONGEST_KEY, DIGEST = 24, 6  # characters of a pool's name, and of its digest
_MADE = re.compile(r"-(router|pods|\d+)$")  # what files add to a pool's name
_REFERENCE = re.compile(r"\$(\w+|\{\w+((:?\?)[^}]*)?\})")


@dataclass(frozen=True, slots=True)
class Start:
    """How long a replica takes until it answers, in seconds, and where that is from."""

    seconds: float
    told: str
    measured: bool = True

    @property
    def allowed_s(self) -> int:
        """What a probe must allow: twice as long and a minute, for a slower disk or network."""
        return round(2 * self.seconds + MARGIN_S)


ASSUMED = Start(
    ASSUMED_START_S,
    "assumed: no run was given; --runs takes it from measured starts",
    measured=False,
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One configuration, ready to be written down.

    words: arguments of `vllm serve` after the model, without address and key. folder: the model is
    a folder of this host and is mounted at that path. revision: of the model at its hub, None: not
    pinned. environment: plain values; secrets: names of variables whose values the platform keeps.
    notes: lines for the head of every file. origins: knob -> where its value is from. pool: of
    which pool the servers are, `first_gpu` the first of its GPUs on a host that pools share.
    """

    name: str
    image: str
    model: str
    words: tuple[str, ...]
    replicas: int
    gpus_per_replica: int
    gpu: str | None
    start: Start = ASSUMED
    folder: str | None = None
    revision: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = (API_KEY,)
    router: Router | None = None
    at_once: int = 256
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    pool: str | None = None
    first_gpu: int = 0

    @property
    def server(self) -> str:
        """What its servers are called on a host, before their number."""
        return "vllm" if self.pool is None else f"vllm-{self.key}"

    @property
    def key(self) -> str:
        """The pool in names of platforms; only a pool of another name has another key.

        A name that is no label, is long, or ends as a name that is made from another pool's does
        ("chat-router", "chat-0") gets a digest.
        """
        name = self.pool or ""
        made = _label(name)
        if made == name and len(made) <= LONGEST_KEY and not _MADE.search(made):
            return made
        digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST]
        return f"{made[: LONGEST_KEY - DIGEST - 1].rstrip('-')}-{digest}"

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.replicas * self.gpus_per_replica

    @property
    def command(self) -> tuple[str, ...]:
        """`vllm serve` with everything but its address."""
        pinned = () if self.revision is None else ("--revision", self.revision)
        return ("vllm", "serve", self.model, *pinned, *self.words)

    @property
    def label(self) -> str:
        """The name as platforms take it: lower case, digits and dashes, at most 50 characters."""
        if self.pool is None:
            return _label(self.name)
        return f"{_label(self.name)[: 49 - len(self.key)]}-{self.key}"


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "vllm"


def deployments_of(
    name: str, configuration: Configuration, *, notes: Sequence[str] = (), **more: Any
) -> tuple[Deployment, ...]:
    """A deployment for each pool of a configuration, one where it has none.

    Raises BadInput as `deployment_of`, and where two pools would have one name.
    """
    if not configuration.pools:
        return (deployment_of(name, configuration, notes=notes, **more),)
    found: list[Deployment] = []
    for part, pool in zip(configuration.parts, configuration.pools, strict=True):
        told = f"pool {pool.name}: for the requests of {' and '.join(pool.classes)}, and no others"
        made = deployment_of(name, part, notes=(*notes, told), **more)
        first = sum(one.gpus for one in found)
        found.append(replace(made, pool=pool.name, first_gpu=first))
    for one, other in itertools.combinations(found, 2):
        if one.key == other.key or one.label == other.label:
            raise BadInput(
                f"the pools {one.pool} and {other.pool} would both be called {one.label}",
                where="pools", fix="rename one of them",
            )  # fmt: skip
    return tuple(found)


def deployment_of(
    name: str,
    configuration: Configuration,
    *,
    model: str | None = None,
    image: str | None = None,
    revision: str | None = None,
    start: Start = ASSUMED,
    at_once: int = 256,
    notes: Sequence[str] = (),
    origins: Mapping[str, str] | None = None,
) -> Deployment:
    """The deployment of a configuration; raises BadInput for what cannot be written down.

    `model`: what is served in place of the configuration's, which may have been random weights.
    `at_once`: requests that a replica may be sent at the same time, for platforms that ask.
    """
    launch = configuration.launch or Launch()
    if configuration.engine not in ("vllm", "twin"):
        raise BadInput(
            f"only vLLM's servers are exported, not {configuration.engine!r}", where="engine"
        )
    if launch.command is not None and launch.image is None:
        raise BadInput(
            "a command of your own is on no other machine", where="launch.command",
            fix="leave it out, or name an image that has it (launch.image)",
        )  # fmt: skip
    knobs = configuration.knobs
    per_replica = (knobs.tensor_parallel_size or 1) * (knobs.pipeline_parallel_size or 1)
    served = model or configuration.model
    dummy = knobs.load_format == "dummy" or "dummy" in " ".join(launch.arguments)
    if model is None and dummy:
        raise BadInput(
            f"the study serves random weights in the shape of {served}", where="model",
            fix="name the model that is to be served: --model",
        )  # fmt: skip
    folder = str(Path(served).resolve()) if _is_folder(served) else None
    if folder is not None and revision is not None:
        raise BadInput("a folder has no revision", where="--revision", fix="leave it out")
    return Deployment(
        name=name,
        image=image or launch.image or _pinned(configuration.engine_version),
        model=folder or served,
        words=(*serve_arguments(replace(knobs, load_format=None)), *_served(launch.arguments)),
        replicas=knobs.data_parallel_size or 1,
        gpus_per_replica=per_replica,
        gpu=configuration.gpu,
        start=start,
        folder=folder,
        revision=revision,
        environment={n: v for n, v in launch.environment.items() if v},
        secrets=(API_KEY, *_secrets(launch)),
        router=launch.router,
        at_once=at_once,
        notes=(*notes, *_differs(launch, configuration.model, dummy=dummy)),
        origins=dict(origins or {}),
    )


def _served(arguments: Sequence[str]) -> list[str]:
    """Arguments without the random weights that a measurement may do with."""
    words = list(arguments)
    while "--load-format" in words:
        at = words.index("--load-format")
        del words[at : at + 2]
    return [w for w in words if not w.startswith("--load-format=")]


def _differs(launch: Launch, model: str, *, dummy: bool) -> list[str]:
    """What of the measurement does not hold for what is deployed."""
    found = []
    if dummy:
        found.append(f"measured with random weights in the shape of {model}, not with this model's")
    if (launch.resident or 1) > 1:
        found.append(
            f"measured as one of {launch.resident} engines on a GPU: gpu_memory_utilization and"
            " kv_cache_memory_bytes are its share, raise them for a GPU of its own"
        )
    return found


def _secrets(launch: Launch) -> list[str]:
    """Variables that the study takes from the environment: some are secrets, all are kept so."""
    return [n for n, v in launch.environment.items() if v is None and n != API_KEY]


def _is_folder(model: str) -> bool:
    return Path(model).is_dir()


def _pinned(version: str | None) -> str:
    if version is None:
        raise BadInput(
            "no version of vLLM is known, so no image can be pinned",
            where="engine_version",
            fix=f"write it into the study file, or give --image {IMAGE}:vX.Y.Z",
        )
    return f"{IMAGE}:v{version.removeprefix('v')}"


def is_pinned(image: str) -> bool:
    """True for an image with a digest, or whose tag begins with a version's number (v0.21.0)."""
    name, _, digest = image.partition("@")
    tag = name.rsplit("/", 1)[-1].partition(":")[2]
    return bool(digest) or re.match(r"v?\d+\.\d+", tag) is not None


def in_clear(name: str, value: object) -> bool:
    """True when a variable that is named like a secret has its value in the file.

    A reference (`$NAME`, `${NAME}`, `${NAME:?why}`) or nothing is no value; a default in a
    reference is one.
    """
    if not secret_name(name) or value in (None, "", False):
        return False
    return _REFERENCE.fullmatch(str(value)) is None
