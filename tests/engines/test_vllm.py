"""Starting, failing, hanging and stopping engine processes, with a fake engine."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ridgeline.domain.errors import BadInput, EndpointError, RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.domain.records import MemorySink, RecordSink
from ridgeline.domain.run import LiveFigures, RunFacts, SilentWatch, Source, Watch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines import started
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.resident import ResidentEngine
from ridgeline.engines.started import ServerLaunch, free_port
from ridgeline.engines.vllm import VllmEngine
from ridgeline.engines.vllm_args import serve_arguments
from ridgeline.workload.schedule import draw_schedule

FAKE = Path(__file__).with_name("fake_engine.py")


def launch(tmp_path: Path, log: str, ending: str, **more: object) -> ServerLaunch:
    text = tmp_path / "prepared.log"
    text.write_text(log)
    command = (sys.executable, str(FAKE), str(text), ending)
    return ServerLaunch(command=command, log_folder=tmp_path / "logs", **more)  # type: ignore[arg-type]


def configuration(**knobs: object) -> Configuration:
    return Configuration("tiny", Knobs().with_changes(knobs), engine="vllm")


def test_numbers_are_passed_with_all_their_digits() -> None:
    knobs = Knobs(gpu_memory_utilization=0.123456789, watermark=1e-7)
    assert serve_arguments(knobs) == [
        "--watermark", "1e-07", "--gpu-memory-utilization", "0.123456789",
    ]  # fmt: skip


def test_knobs_become_the_arguments_that_vllm_takes() -> None:
    knobs = Knobs(
        max_num_seqs=64,
        enable_prefix_caching=False,
        enforce_eager=True,
        gpu_memory_utilization=0.9,
        cudagraph_capture_sizes=(1, 2, 4),
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        data_parallel_size=4,
    )
    assert serve_arguments(knobs) == [
        "--max-num-seqs", "64",
        "--no-enable-prefix-caching",
        "--gpu-memory-utilization", "0.9",
        "--enforce-eager",
        "--cudagraph-capture-sizes", "1", "2", "4",
        "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}',
    ]  # fmt: skip


def test_a_failed_start_is_known_at_once_with_its_class(tmp_path: Path) -> None:
    log = "INFO x\nValueError: No available memory for the cache blocks. Try increasing it.\n"
    engine = VllmEngine(launch(tmp_path, log, "exit=1", ready_s=600))
    begun = time.monotonic()
    with (
        pytest.raises(RunFailed, match=r"kv_none.*exit code 1") as caught,
        engine.start(configuration()),
    ):
        pass
    assert time.monotonic() - begun < 10  # not the 600 s of the ready limit
    assert caught.value.exit_code == 3
    assert caught.value.where is not None
    assert "No available memory" in Path(caught.value.where).read_text()


def test_an_end_is_known_within_a_second(tmp_path: Path) -> None:
    """C-ST-02: not when the ready limit of 600 s is over. A busy machine gets three tries."""
    log = "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    delays = []
    for _ in range(3):
        engine = VllmEngine(launch(tmp_path, log, "late-exit=1", ready_s=600))
        with (
            pytest.raises(RunFailed, match=r"oom_weights") as caught,
            engine.start(configuration()),
        ):
            pass
        known = time.monotonic()
        text = Path(caught.value.where or "").read_text()
        delays.append(known - float(text.split("ended at ")[1].split()[0]))
        if delays[-1] < 1.0:
            break
    assert min(delays) < 1.0, delays


def test_health_200_without_completions_is_a_hang(tmp_path: Path) -> None:
    engine = VllmEngine(launch(tmp_path, "INFO up", "hang", ready_s=2))
    with pytest.raises(RunFailed, match="hung"), engine.start(configuration()):
        pass


def test_a_server_that_wants_another_key_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the 600 s of the ready limit, and without the key that it quotes."""
    monkeypatch.setenv("RIDGELINE_API_KEY", "sk-wrong")
    engine = VllmEngine(launch(tmp_path, "INFO up", "key=sk-right", ready_s=600))
    begun = time.monotonic()
    with pytest.raises(RunFailed, match="refuses completions: 401") as caught:
        engine.start(configuration()).__enter__()
    assert time.monotonic() - begun < 30
    assert caught.value.failure_class == "refused"  # type: ignore[attr-defined]
    assert "no, not with Bearer ***" in caught.value.what
    assert "RIDGELINE_API_KEY" in (caught.value.fix or "")


def test_the_key_goes_with_the_first_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIDGELINE_API_KEY", "sk-right")
    with VllmEngine(launch(tmp_path, "INFO up", "key=sk-right", ready_s=20)).start(configuration()):
        pass


def test_a_refusal_that_passes_is_none(tmp_path: Path) -> None:
    """A router answers 404 until it knows its replicas."""
    with VllmEngine(launch(tmp_path, "INFO up", "settles=4", ready_s=20)).start(configuration()):
        pass


@pytest.mark.parametrize("status", [500, 429])
def test_what_waiting_may_change_is_waited_for(tmp_path: Path, status: int) -> None:
    engine = VllmEngine(launch(tmp_path, "INFO up", f"status={status}", ready_s=4.5))
    with pytest.raises(RunFailed, match=f"hung: .* last it answered {status}"):
        engine.start(configuration()).__enter__()


def test_an_engine_that_dies_while_its_first_completion_is_waited_for(tmp_path: Path) -> None:
    engine = VllmEngine(launch(tmp_path, "INFO up", "hang", ready_s=600))
    found: list[Exception] = []

    def start() -> None:
        try:
            engine.start(configuration()).__enter__()
        except RunFailed as error:
            found.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    (server,) = _servers(tmp_path)
    time.sleep(1.0)
    server.kill()
    thread.join(10)
    assert not thread.is_alive()
    assert "before it was ready" in str(found[0])


def _servers(tmp_path: Path, count: int = 1) -> list[psutil.Process]:
    """The fake engines of this test, once they are there."""
    deadline = time.monotonic() + 10
    while True:
        found = [
            p
            for p in psutil.Process().children(recursive=True)
            if p.name() != "sh" and p.cmdline()[1:3] == [str(FAKE), str(tmp_path / "prepared.log")]
        ]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_second_ctrl_c_ends_starts_side_by_side_at_once(tmp_path: Path) -> None:
    """Completions hang: nothing but an interruption ends the wait before 600 s are over."""
    (tmp_path / "prepared.log").write_text("INFO up")
    script = (
        "import signal, sys; from pathlib import Path\n"
        # A shell's background job is born with SIGINT ignored, and so are the tests in one.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from ridgeline.domain.knobs import Configuration, Knobs\n"
        "from ridgeline.engines.resident import ResidentEngine\n"
        "from ridgeline.engines.started import ServerLaunch\n"
        "from ridgeline.engines.vllm import VllmEngine\n"
        f"command = (sys.executable, {str(FAKE)!r}, {str(tmp_path / 'prepared.log')!r}, 'hang')\n"
        f"logs = Path({str(tmp_path / 'logs')!r})\n"
        "engine = ResidentEngine(VllmEngine(ServerLaunch(command=command, log_folder=logs,"
        " ready_s=600)))\n"
        "two = [Configuration('m', Knobs(max_num_seqs=n), engine='vllm') for n in (1, 2)]\n"
        "engine.expect([two], together=True, logs=logs)\n"
        "try:\n"
        "    with engine.start(two[0]): print('up')\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "engine.close()\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        servers = _servers(tmp_path, 2)
        time.sleep(1.5)
        ours.send_signal(signal.SIGINT)
        said, _ = ours.communicate(timeout=20)
    finally:
        ours.kill()
        ours.wait()
    assert said == "interrupted\n"
    assert [p for p in servers if p.is_running() and p.status() != "zombie"] == []


def test_a_missing_program_is_one_clear_line(tmp_path: Path) -> None:
    engine = VllmEngine(ServerLaunch(command=("no-such-vllm",), log_folder=tmp_path))
    with pytest.raises(RunFailed, match="no-such-vllm"), engine.start(configuration()):
        pass


def test_stopping_takes_grandchildren_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    bystander = subprocess.Popen(["sleep", "600"], env={**os.environ, "NAME": "vllm"})
    command = [sys.executable, str(FAKE), str(tmp_path / "log"), "children", "--port", "0"]
    process = EngineProcess(command, tmp_path / "out")
    try:
        family = _family_of(process.pid, at_least=3)
        process.stop()
        assert [p for p in family if p.is_running()] == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_kill_9_of_ridgeline_leaves_no_engine_behind(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    script = (
        "import sys, time; from pathlib import Path\n"
        "from ridgeline.engines.process import EngineProcess\n"
        f"p = EngineProcess([sys.executable, {str(FAKE)!r}, {str(tmp_path / 'log')!r}, 'children',"
        f" '--port', '0'], Path({str(tmp_path / 'out')!r}))\n"
        "print(p.pid, flush=True); time.sleep(600)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    guard = int(ours.stdout.readline())
    family = [psutil.Process(guard), *_family_of(guard, at_least=3)]
    os.kill(ours.pid, signal.SIGKILL)
    ours.wait()
    ours.stdout.close()
    deadline = time.monotonic() + 10
    while any(p.is_running() and p.status() != "zombie" for p in family):
        assert time.monotonic() < deadline, f"still there: {family}"
        time.sleep(0.05)


@pytest.mark.parametrize("stops", [True, False])
def test_kill_9_of_the_guard_leaves_no_engine_behind(tmp_path: Path, stops: bool) -> None:
    """The engine ends with its guard, at once; what it started ends when it is stopped."""
    (tmp_path / "log").write_text("")
    command = [sys.executable, str(FAKE), str(tmp_path / "log"), "children", "--port", "0"]
    clean = ["touch", str(tmp_path / "cleaned")]
    bystander = subprocess.Popen(["sleep", "600"])
    process = EngineProcess(command, tmp_path / "out", cleanup=clean)
    family = _family_of(process.pid, at_least=3)
    (engine,) = psutil.Process(process.pid).children()
    try:
        os.kill(process.pid, signal.SIGKILL)
        if stops:
            process.stop()
            assert [p for p in family if p.is_running() and p.status() != "zombie"] == []
            assert (tmp_path / "cleaned").exists()
        else:
            deadline = time.monotonic() + 5
            while engine.is_running() and engine.status() != "zombie":
                assert time.monotonic() < deadline, engine
                time.sleep(0.02)
        assert bystander.poll() is None
    finally:
        process.stop()
        bystander.kill()
        bystander.wait()


def _family_of(pid: int, at_least: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 10
    while len(family := psutil.Process(pid).children(recursive=True)) < at_least:
        assert time.monotonic() < deadline, family
        time.sleep(0.05)
    return family


def test_the_engines_environment_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PYTHONPATH for the engine must not reach the guard, which needs Ridgeline's own."""
    monkeypatch.setenv("TAKEN_AWAY", "yes")
    show = "import os; print([os.environ.get(k) for k in ('PYTHONPATH', 'TAKEN_AWAY', 'KEPT')],"
    show += " [k for k in os.environ if k.startswith('RIDGELINE_ENGINE')])"
    (tmp_path / "psutil.py").write_text("raise SystemExit('the guard imported this')")
    monkeypatch.setenv("KEPT", "from us")
    process = EngineProcess(
        [sys.executable, "-c", show],
        tmp_path / "log",
        {"PYTHONPATH": str(tmp_path), "TAKEN_AWAY": ""},
    )
    try:
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (
            process.log_text().strip()
            == f"[{str(tmp_path)!r}, None, 'from us'] ['RIDGELINE_ENGINE_MARK']"
        )
        assert process.poll() == 0
        assert process.log_since(process.log_size() - 1) == "\n"
    finally:
        process.stop()


def test_the_study_files_launch_decides_over_the_default(tmp_path: Path) -> None:
    (tmp_path / "prepared.log").write_text("INFO up")
    given = Launch(
        command=(sys.executable, str(FAKE), str(tmp_path / "prepared.log"), "hang", "{model}"),
        arguments=("--one-more",),
        ready_s=2.0,
    )
    engine = VllmEngine(ServerLaunch(command=("no-such-vllm",)))
    engine.log_to(tmp_path / "logs")
    with (
        pytest.raises(RunFailed, match="hung") as caught,
        engine.start(replace(configuration(), launch=given)),
    ):
        pass
    assert caught.value.failure_class == "hung"  # type: ignore[attr-defined]
    assert Path(caught.value.where or "").parent == tmp_path / "logs"


def test_a_start_can_be_given_up_from_another_thread(tmp_path: Path) -> None:
    engine = VllmEngine(launch(tmp_path, "INFO up", "hang", ready_s=60))
    _health_only(engine)
    timer = threading.Timer(0.5, engine.abandon)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(RunFailed, match="given up"), engine.start(configuration()):
        pass
    timer.join()
    assert time.monotonic() - begun < 30  # not the 60 s of the ready limit


def _health_only(engine: VllmEngine) -> None:
    """Keep the start waiting for /health, where it looks whether it was given up."""
    engine._launch = replace(engine._launch, arguments=("--not-healthy",))


def test_ports_of_engines_that_start_together_differ() -> None:
    with ThreadPoolExecutor(8) as pool:
        ports = list(pool.map(lambda _: free_port(), range(64)))
    assert len(set(ports)) == 64


def test_a_port_that_another_server_shares_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SO_REUSEPORT both listen, and the kernel deals the requests out to either."""
    prepared = tmp_path / "prepared.log"
    prepared.write_text("INFO up")
    port = free_port()
    command = [sys.executable, str(FAKE), str(prepared), "serve", "--port", str(port)]
    other = subprocess.Popen([*command, "--shares-port"], stdout=subprocess.DEVNULL)
    try:
        _wait_for_port(port)
        monkeypatch.setattr(started, "free_port", lambda: port)
        engine = VllmEngine(launch(tmp_path, "INFO up", "serve", arguments=("--shares-port",)))
        said = rf"port: another server \(process {other.pid}\) listens on the same port"
        with pytest.raises(RunFailed, match=said) as caught, engine.start(configuration()):
            pass
        assert caught.value.failure_class == "port"  # type: ignore[attr-defined]
        assert other.poll() is None
        # without the option the engine cannot listen at all: told by itself, or seen before it ends
        engine = VllmEngine(launch(tmp_path, "INFO up", "serve", ready_s=20))
        with pytest.raises(RunFailed, match="port: ") as caught, engine.start(configuration()):
            pass
        assert caught.value.failure_class == "port"  # type: ignore[attr-defined]
    finally:
        other.kill()
        other.wait()


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_the_engine_is_stopped_where_processes_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox's /proc may lack what the listing needs; the command's group still goes."""
    (tmp_path / "sitecustomize.py").write_text(
        "import psutil\n"
        "def children(self, recursive=False): raise RuntimeError(\"line 'btime' not found\")\n"
        "psutil.Process.children = children\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # acts on the guard
    (tmp_path / "log").write_text("")
    command = [sys.executable, str(FAKE), str(tmp_path / "log"), "serve", "--port", "0"]
    process = EngineProcess(command, tmp_path / "out")
    (child,) = _family_of(process.pid, at_least=1)
    process.stop()
    assert not child.is_running()


@pytest.mark.parametrize(
    ("visible", "pinned"), [(None, ["0,1", "2,3"]), ("4,5,6,7,8", ["4,5", "6,7"])]
)
def test_each_replica_has_its_own_gpus_and_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, pinned: list[str]
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    engine = VllmEngine(launch(tmp_path, "INFO up", "serve"))
    wanted = configuration(data_parallel_size=2, tensor_parallel_size=2)
    with engine.start(replace(wanted, gpu="H100-SXM", gpus=4)) as endpoint:
        assert endpoint.alive()
        replicas = endpoint._replicas
        logs = sorted(r.process.log_text() for r in replicas)
        assert len({r.url for r in replicas}) == 2
    assert [t.split("CUDA_VISIBLE_DEVICES = ")[1].strip() for t in logs] == pinned
    assert not endpoint.alive()


def test_more_gpus_than_there_are_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    engine = VllmEngine(launch(tmp_path, "INFO up", "serve"))
    wanted = replace(configuration(data_parallel_size=2), gpu="H100-SXM", gpus=2)
    with pytest.raises(BadInput, match="needs 2 GPUs, 1 are"), engine.start(wanted):
        pass


def test_an_engine_that_dies_under_load_is_told_in_its_own_words(tmp_path: Path) -> None:
    engine = VllmEngine(launch(tmp_path, OUT_OF_MEMORY, "serve"))
    with engine.start(configuration()) as endpoint:
        (replica,) = endpoint._replicas

        class Dies:
            source = "measured"

            def drive(self, *_: object) -> None:
                (child,) = _family_of(replica.process.pid, at_least=1)
                child.kill()
                child.wait()
                _wait_for_end(replica.process)
                raise EndpointError("no connection", where=replica.url)

        endpoint._http = Dies()  # type: ignore[assignment]
        with pytest.raises(RunFailed, match=r"oom_load.*137.*during the run") as caught:
            endpoint.drive(None, None, None)  # type: ignore[arg-type]
        assert caught.value.failure_class == "oom_load"  # type: ignore[attr-defined]
        assert not endpoint.alive()


@pytest.mark.parametrize(
    ("gpu", "given", "limit_s"),
    [(None, None, 300.0), ("H200-SXM", None, 30.0), (None, 7.0, 7.0), ("H200-SXM", 7.0, 7.0)],
)
def test_without_a_gpu_a_step_may_take_minutes(
    tmp_path: Path, gpu: str | None, given: float | None, limit_s: float
) -> None:
    engine = VllmEngine(launch(tmp_path, "INFO up", "serve"))
    wanted = replace(configuration(), gpu=gpu, launch=Launch(stalled_s=given, ready_s=20.0))
    with engine.start(wanted) as endpoint:
        assert endpoint._stalled_s == limit_s


class Waiting:
    """A client whose 17 requests get no chunk; it ends when it is told to."""

    source: Source = "measured"

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        begun = time.monotonic()
        while not watch.stop_asked() and time.monotonic() - begun < 30.0:
            elapsed_s = time.monotonic() - begun
            watch.live(LiveFigures(elapsed_s, 60, "measuring", 0.0, None, 17, 0, 17, chunks=880))
            time.sleep(0.1)
        raise EndpointError("stopped")


def test_a_server_that_falls_silent_altogether_is_stalled(tmp_path: Path) -> None:
    """Its page of counters answers no more, and no chunk comes; its process is there."""
    engine = VllmEngine(launch(tmp_path, "INFO up", "silent"))
    drive = DrivePlan(draw_schedule(Workload(Arrivals(users=2), duration_s=60.0)), "salt")
    said = r"stalled: its page of counters has been silent for \d+ s, and no chunk came .* 17 requ"
    with engine.start(replace(configuration(), launch=Launch(stalled_s=2.0))) as endpoint:
        endpoint._http = Waiting()
        with pytest.raises(RunFailed, match=said):
            endpoint.drive(drive, MemorySink(), SilentWatch())
        assert not endpoint.alive()


def test_an_engine_that_stands_still_is_ended_and_started_anew(tmp_path: Path) -> None:
    """C-ST-04: requests run and wait, no step is taken, /health says 200 all the while."""
    work = Workload(Arrivals(users=2), duration_s=60.0, warmup_s=0.0)
    drive = DrivePlan(draw_schedule(work), "salt", "completions")
    resident = ResidentEngine(VllmEngine(launch(tmp_path, "INFO up", "stall")))
    wanted = replace(configuration(), launch=Launch(stalled_s=2.0, ready_s=60.0))
    said = r"stalled: no step and no token for \d+ s with 12 requests running and 5 waiting"
    begun = time.monotonic()
    with resident.start(wanted) as endpoint:
        first = endpoint._replicas[0]  # type: ignore[attr-defined]
        with pytest.raises(RunFailed, match=said) as caught:
            endpoint.drive(drive, MemorySink(), SilentWatch())
    assert caught.value.failure_class == "stalled"  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 30.0  # the client's own limits are 60 s and more
    assert first.process.poll() is None
    with resident.start(wanted) as again:
        assert again._replicas[0].process is not first.process  # type: ignore[attr-defined]
        assert first.process.poll() is not None
    resident.close()


def test_a_request_that_can_never_run_is_told_before_any_traffic(tmp_path: Path) -> None:
    """C-ST-08: a prompt of 25 000 tokens before a KV cache of 20 000."""
    log = (
        "INFO GPU KV cache size: 20,000 tokens\n"
        "INFO Maximum concurrency for 32,768 tokens per request: 0.61x\n"
    )
    engine = VllmEngine(launch(tmp_path, log, "stall"))
    work = Workload(Arrivals(users=1), Prompts(Lengths(25_000)), Outputs(Lengths(8)),
                    duration_s=60.0, warmup_s=0.0)  # fmt: skip
    with engine.start(configuration()) as endpoint, pytest.raises(RunFailed) as caught:
        endpoint.drive(DrivePlan(draw_schedule(work), "salt"), MemorySink(), SilentWatch())
    text = str(caught.value)
    assert "a request of 25\u2009008 tokens can never run: the KV cache holds 20\u2009000" in text
    assert "0.61 of a request of max_model_len" in text
    assert "set max_model_len to 20000" in text
    assert caught.value.failure_class == "kv_too_small"  # type: ignore[attr-defined]


OUT_OF_MEMORY = """\
INFO Application startup complete.
ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def _wait_for_end(process: EngineProcess) -> None:
    deadline = time.monotonic() + 20
    while process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
