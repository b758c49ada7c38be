"""`ridgeline serve` as a process: stand-ins for vLLM and vllm-router, everything else real."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.cli.main import run
from support.served import Served, Users, ask, free_port, lives, serving_of

HERE = Path(__file__).parent
ENGINE = [sys.executable, str(HERE / "stand_in.py"), "{model}"]
ROUTER = [sys.executable, str(HERE / "stand_in_router.py")]
FAST = ("--hung-seconds", "4")


def study(
    folder: Path, seqs: int = 8, replicas: int = 2, name: str = "s.yaml", **launch: object
) -> Path:
    file = folder / name
    words = {"command": ENGINE, "ready_s": 30, "router": {"command": ROUTER}, **launch}
    file.write_text(
        "name: s\nmodel: m\nengine: vllm\n"
        f"launch: {json.dumps(words)}\n"
        "workload: {arrivals: {users: 1}}\n"
        f"baseline: {{max_num_seqs: {seqs}, data_parallel_size: {replicas}}}\n"
        "experiments: [{name: other, set: {max_num_seqs: 16}}]\n"
    )
    return file


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lasting")
    options = ("--metrics-port", str(metrics_port), *FAST)
    with serving_of(study(folder), folder / "state", *options) as served:
        yield served


@pytest.fixture
def served(lasting: Served) -> Served:
    """One that several tests share; each leaves it with both replicas up."""
    lasting.wait(lambda: [r["state"] for r in lasting.state()["replicas"]] == ["up", "up"])
    lasting.forget()
    return lasting


def poke(url: str, path: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url + path, b"", method="POST"), timeout=5)


def test_two_replicas_serve_behind_one_url_until_it_is_stopped(tmp_path: Path) -> None:
    with serving_of(study(tmp_path), tmp_path / "state") as served:
        answers = [ask(served.port) for _ in range(20)]
        assert {status for status, _ in answers} == {200}
        assert sorted(Counter(a["port"] for _, a in answers).values()) == [10, 10]
        urls = {r["url"] for r in served.state()["replicas"]}
        assert {e["url"] for e in served.events("ready")} == urls
        out = (tmp_path / "state.out").read_text()
        assert re.search(r"^20\d\d-\d\d-\d\dT[\d:.]+Z all replica 1: up: in rotation$", out, re.M)
        assert served.stop() == 0
        assert len(served.family) >= 6  # guard and program, three times
        assert served.left() == []
    assert served.events()[-1]["event"] == "ended"
    assert served.state()["replicas"] == []


def test_one_that_is_killed_is_replaced_and_later_requests_all_succeed(served: Served) -> None:
    with Users(served.port, 8) as users:
        time.sleep(0.5)
        lost = served.replica(0)["url"]
        killed_s = time.monotonic()
        served.below(lost)[0].kill()
        took = served.wait_for("up", 1)
        assert took < 10
        time.sleep(0.5)
        # the router asks another one for what it could not send
        assert users.statuses(killed_s + 1.0).keys() == {200}
        assert served.replica(0)["url"] == lost  # what knows its URL need not learn another one
        (told,) = served.events("lost")
        assert "exit code 137" in told["words"]


def test_a_hung_one_with_a_healthy_health_is_taken_out(served: Served) -> None:
    url = served.replica(1)["url"]
    with Users(served.port, 4, tokens=20):
        poke(url, "/test/hang")
        assert served.wait_for("lost") < 4 + 2 + 2  # the limit, a probe, a page
    (told,) = served.events("lost")
    assert told["replica"] == 1
    assert "hung: no completion and no step" in told["words"]
    served.wait_for("up", 1)
    assert {ask(served.port)[0] for _ in range(4)} == {200}


def test_a_sick_one_is_taken_out(served: Served) -> None:
    poke(served.replica(0)["url"], "/test/sick")
    served.wait_for("lost")
    assert "unwell: /health: status 503" in served.events("lost")[0]["words"]
    served.wait_for("up", 1)


def test_a_stopped_process_is_killed_though_it_heeds_no_term(served: Served) -> None:
    engine = served.below(served.replica(0)["url"])[0]
    engine.suspend()
    served.wait_for("lost")
    served.wait(lambda: not lives(engine), 5.0)
    served.wait_for("up", 1)


def test_a_long_answer_under_load_is_not_taken_for_hung(served: Served) -> None:
    begun = time.monotonic()
    status, answer = ask(served.port, tokens=600)
    assert time.monotonic() - begun > 5.9
    assert (status, answer["usage"]["completion_tokens"]) == (200, 600)
    assert not served.events("lost")


def test_a_router_that_dies_is_started_again_and_learns_its_workers(served: Served) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        poke(f"http://127.0.0.1:{served.port}", "/test/die")
    served.wait_for("router-lost")
    served.wait(lambda: ask(served.port)[0] == 200, 10.0)
    assert len({ask(served.port)[1]["port"] for _ in range(4)}) == 2
    assert not served.events("lost")


def test_a_worker_that_somebody_else_adds_does_not_stay(served: Served) -> None:
    front = f"http://127.0.0.1:{served.port}"
    poke(front, "/add_worker?url=http://127.0.0.1:9")
    served.wait_for("stranger")
    with urllib.request.urlopen(front + "/list_workers", timeout=5) as reply:
        assert "http://127.0.0.1:9" not in json.load(reply)["urls"]


def test_running_requests_end_before_it_does_and_new_ones_are_refused(tmp_path: Path) -> None:
    with serving_of(study(tmp_path), tmp_path / "state") as served:
        found: list[tuple[int, dict]] = []
        threads = [threading.Thread(target=lambda: found.append(ask(served.port, tokens=300)))
                   for _ in range(6)]  # fmt: skip
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        served.look()
        served.process.send_signal(signal.SIGTERM)
        served.wait_for("stopping")
        time.sleep(1.0)
        assert ask(served.port)[0] in (0, 503)
        for thread in threads:
            thread.join()
        assert [status for status, _ in found] == [200] * 6
        assert served.process.wait(20) == 0
        assert served.left() == []
    assert not served.events("cut")


def test_a_drain_that_takes_too_long_is_cut_and_a_second_ctrl_c_cuts_at_once(
    tmp_path: Path,
) -> None:
    for folder, options, twice in (("a", ("--drain-seconds", "1"), False), ("b", (), True)):
        with serving_of(study(tmp_path), tmp_path / folder, *options) as served:
            thread = threading.Thread(target=ask, args=(served.port, 3000))
            thread.start()
            time.sleep(0.5)
            served.look()
            served.process.send_signal(signal.SIGINT)
            served.wait_for("stopping")
            if twice:
                served.process.send_signal(signal.SIGINT)
            assert served.process.wait(15) == 0
            assert served.left() == []
            thread.join()
        assert bool(served.events("cut")) is not twice


def test_killed_itself_it_leaves_nothing(tmp_path: Path) -> None:
    with serving_of(study(tmp_path), tmp_path / "state") as served:
        served.look()
        served.process.kill()
        served.process.wait()
        end = time.monotonic() + 20
        while served.left() and time.monotonic() < end:
            time.sleep(0.1)
        assert served.left() == []


def test_a_rolling_change_breaks_no_stream_and_loses_no_request(tmp_path: Path) -> None:
    """Streams: what had no byte yet is sent again by the router, and would prove no drain."""
    file = study(tmp_path)
    with serving_of(file, tmp_path / "state", *FAST) as served:
        streams = Users(served.port, 12, tokens=60, extra={"stream": True})
        with streams, Users(served.port, 4, tokens=2, pause_s=0.01) as users:
            streams.wait_for(24)
            study(tmp_path, seqs=32)
            begun_s = time.monotonic()
            served.process.send_signal(signal.SIGHUP)
            served.wait_for("changed", limit_s=60)
            changed_s = time.monotonic()
            streams.wait_for(len(streams.answers) + 24)
            users.wait_for(500)
        assert users.statuses() == {200: len(users.answers)}
        assert streams.statuses() == {200: len(streams.answers)}
        over = [a for sent, ended, _, a in streams.answers if sent < begun_s < ended]
        assert len(over) == 12
        for answers in (users.answers, streams.answers):
            assert {a["seqs"] for _, _, _, a in answers} == {"8", "32"}
            assert {a["seqs"] for sent, _, _, a in answers if sent > changed_s} == {"32"}
        assert len(served.events("drained")) == 2
        assert not served.events("cut")
        assert not served.events("lost")
        served.wait(lambda: [r["restarts"] for r in served.state()["replicas"]] == [0, 0])


def test_apply_hands_another_experiment_over_and_a_bad_one_is_rolled_back(tmp_path: Path) -> None:
    file, state = study(tmp_path), tmp_path / "state"
    with serving_of(file, state, *FAST) as served:
        words = [sys.executable, "-P", "-m", "ridgeline.cli.main", "serve"]

        def apply(*more: str) -> subprocess.CompletedProcess[str]:
            command = [*words, *more, "--state", str(state), "--apply"]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        done = apply(str(file), "--experiment", "other")
        assert done.returncode == 0, done.stderr
        assert ask(served.port)[1]["seqs"] == "16"
        broken = study(tmp_path, seqs=13, name="broken.yaml")
        done = apply(str(broken))
        assert done.returncode == 3
        assert "rolling-back" in done.stderr
        assert "this many do not fit" in done.stderr
        assert {ask(served.port)[1]["seqs"] for _ in range(4)} == {"16"}
        assert apply(str(file), "--experiment", "other").returncode == 0  # it is what runs
        (tmp_path / "other.yaml").write_text(file.read_text().replace("model: m", "model: n"))
        assert apply(str(tmp_path / "other.yaml")).returncode == 3
        assert "clients ask for m" in served.events("refused")[-1]["words"]
        served.process.send_signal(signal.SIGHUP)
        assert served.process.poll() is None


def test_the_key_is_asked_for_and_stands_nowhere(tmp_path: Path) -> None:
    key, file = "swordfish-4711", tmp_path / "key"
    file.write_text(key + "\n")
    file.chmod(0o600)
    options = ("--api-key-file", str(file), "--metrics-port", "0")
    with serving_of(study(tmp_path), tmp_path / "state", *options) as served:
        assert ask(served.port)[0] == 401
        assert ask(served.port, key=key)[0] == 200
        served.below(served.replica(0)["url"])[0].kill()
        served.wait_for("up", 3)
        served.look()
        assert len(served.command_lines) >= 6
        assert not any(key in line for line in served.command_lines)
        own = psutil.Process(served.process.pid).cmdline()
        assert not any(key in word for word in own)
        assert served.stop() == 0
    written = [p for p in tmp_path.rglob("*") if p.is_file() and p != file]
    assert len(written) >= 6
    for path in written:
        assert key.encode() not in path.read_bytes(), path


def test_its_page_is_prometheus_text_and_says_how_it_stands(
    served: Served, metrics_port: int
) -> None:
    served.below(served.replica(0)["url"])[0].kill()
    served.wait_for("up")
    served.wait(lambda: all(r["up"] and r["answer_s"] for r in served.state()["replicas"]))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    found = {f.name: f for f in text_string_to_metric_families(text)}
    values = {s.labels["replica"]: s.value for s in found["ridgeline_serve_replica_up"].samples}
    assert values == {"0": 1.0, "1": 1.0}
    restarts = found["ridgeline_serve_replica_restarts"]
    assert restarts.type == "counter"
    told = {int(s.labels["replica"]): s.value for s in restarts.samples}
    assert told == {r["replica"]: r["restarts"] for r in served.state()["replicas"]}
    assert told[0] >= 1
    assert all(0 < s.value < 5 for s in found["ridgeline_serve_replica_probe_seconds"].samples)
    states = found["ridgeline_serve_replica_state"].samples
    assert {s.labels["state"] for s in states if s.value} == {"up"}


def test_one_replica_without_a_router_has_the_url_itself(tmp_path: Path) -> None:
    with serving_of(study(tmp_path, replicas=1), tmp_path / "state", "--router", "none") as served:
        assert ask(served.port)[1]["port"] == str(served.port)
        served.below(served.replica(0)["url"])[0].kill()
        served.wait_for("up", 2)
        assert ask(served.port)[0] == 200
        study(tmp_path, replicas=1, seqs=5)
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("changed")
        assert ask(served.port)[1]["seqs"] == "5"
        assert served.events("gap")


def test_for_a_balancer_of_the_users_the_urls_are_printed(tmp_path: Path) -> None:
    options = ("--router-url", "http://127.0.0.1:9")
    with serving_of(study(tmp_path), tmp_path / "state", *options) as served:
        urls = [e["url"] for e in served.events("ready")]
        assert len(set(urls)) == 2
        for url in urls:
            assert ask(int(url.rsplit(":", 1)[1]))[0] == 200
        assert served.state()["router"] is None


def test_each_replica_has_gpus_of_its_own_and_a_change_goes_over_the_free_ones(
    tmp_path: Path,
) -> None:
    file = study(tmp_path)
    text = "hardware: {gpu: H100-SXM, count: 4}\n" + file.read_text()
    text = text.replace("max_num_seqs: 8", "max_num_seqs: 8, tensor_parallel_size: 2")
    file.write_text(text)
    options = ("--gpus", "0,1,4,5,6,7", *FAST)
    with serving_of(file, tmp_path / "state", *options) as served:
        assert {ask(served.port)[1]["gpus"] for _ in range(4)} == {"0,1", "4,5"}
        file.write_text(text.replace("max_num_seqs: 8", "max_num_seqs: 9"))
        served.change()
        served.wait_for("changed", limit_s=60)
        answers = [ask(served.port)[1] for _ in range(4)]
        # beside the first two on the free ones, then on those that became free
        assert {a["gpus"] for a in answers} == {"6,7", "0,1"}
        assert {a["seqs"] for a in answers} == {"9"}


POOLS = """\
  - name: apart
    set: {max_num_seqs: 4}
    pools:
      chat: {set: {data_parallel_size: 2}}
      batch: {set: {data_parallel_size: 1, max_num_seqs: 64}}
"""


def test_each_pool_has_a_url_and_knobs_of_its_own(tmp_path: Path) -> None:
    file = study(tmp_path)
    head, _, _ = file.read_text().partition("experiments:")
    classes = "{arrivals: {rate_per_s: 2}, classes: {chat: {share: 0.5}, batch: {share: 0.5}}}"
    text = head.replace("{arrivals: {users: 1}}", classes) + "experiments:\n" + POOLS
    file.write_text(text)
    options = ("--experiment", "apart")
    with serving_of(file, tmp_path / "state", *options, ready_s=0) as served:
        served.wait_for("serving", 2)
        urls = {e["pool"]: e["url"] for e in served.events("url")}
        ports = {name: int(url.rsplit(":", 1)[1]) for name, url in urls.items()}
        assert ports == {"chat": served.port, "batch": served.port + 1}
        chat, batch = ([ask(port)[1] for _ in range(4)] for port in ports.values())
        assert ({a["seqs"] for a in chat}, {a["seqs"] for a in batch}) == ({"4"}, {"64"})
        assert (len({a["port"] for a in chat}), len({a["port"] for a in batch})) == (2, 1)
        file.write_text(text.replace("max_num_seqs: 64", "max_num_seqs: 65"))
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("changed", limit_s=60)
        assert {ask(ports["batch"])[1]["seqs"] for _ in range(3)} == {"65"}
        assert [e["pool"] for e in served.events("unchanged")] == ["chat"]
        assert [e["pool"] for e in served.events("changed")] == ["batch"]
        assert served.stop() == 0
        assert served.left() == []


def test_a_start_that_fails_ends_it_with_the_engines_words(tmp_path: Path) -> None:
    with serving_of(study(tmp_path, seqs=13), tmp_path / "state", ready_s=0) as served:
        assert served.process.wait(30) == 3
    assert "this many do not fit" in (tmp_path / "state.out").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "and there is no API key; give --api-key-env NAME"),
        (["--host", "0.0.0.0", "--allow-no-key"], "vllm-router asks nobody for a key"),
        (["--router", "none"], "2 replicas need something before them"),
        (["--router", "no-such"], "there is no program 'no-such'"),
        (["--router", "x", "--router-url", "y"], "give one of --router and --router-url"),
        (["--api-key-env", "NO_SUCH_KEY"], "there is no variable NO_SUCH_KEY"),
        (["--experiment", "othr"], "'othr'"),
        (["--engine", "twin"], "write `engine: vllm` there in place of `engine: twin`"),
        (["--apply"], "there is no such state folder"),
        (["--apply", "--port", "9"], "--port: the serve that runs keeps what it was started with"),
        (["--metrics-port", "8000"], "is the port of a pool too"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    code = run(["serve", str(study(tmp_path)), "--state", str(tmp_path / "state"), *options])
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert words in said[-1]
    assert all(line.startswith("note: ") for line in said[:-1])


def test_a_key_file_that_others_can_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    file.write_text("swordfish-4711")
    file.chmod(0o644)
    assert run(["serve", str(study(tmp_path)), "--api-key-file", str(file)]) == 2
    said = capsys.readouterr().err
    assert "others than its owner can read it" in said
    assert "swordfish" not in said


def test_a_taken_port_and_a_taken_folder_are_told_before_anything_starts(tmp_path: Path) -> None:
    def once(served: Served, *options: str) -> str:
        words = [sys.executable, "-P", "-m", "ridgeline.cli.main", "serve", str(file), *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2
        return done.stderr

    file = study(tmp_path)
    with serving_of(file, tmp_path / "state") as served:
        port = str(served.port)
        other = once(served, "--port", port, "--state", str(tmp_path / "other"))
        assert "another `ridgeline serve` of this machine has this port" in other
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            other = once(served, "--port", port, "--state", str(tmp_path / "other"))
        assert "Address already in use" in other
        same = once(served, "--port", str(free_port()), "--state", str(tmp_path / "state"))
        assert "another `ridgeline serve` runs with this folder" in same
