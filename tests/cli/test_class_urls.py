"""A class of a bench with a server of its own."""

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from ridgeline.cli.classurls import class_pools, class_urls
from ridgeline.cli.main import run
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Knobs
from support.mock_server import MockServer, plain_stream


def test_urls_are_told_from_what_a_class_is() -> None:
    texts, own = class_urls(["chat:share=0.8,priority=0", "batch:share=0.2,url=http://b:1"])
    assert texts == ["chat:share=0.8,priority=0", "batch:share=0.2"]
    assert own == {"batch": "http://b:1"}
    pools = class_pools(own, ["chat", "batch"], ("http://a:1", "http://a:2"), Knobs())
    assert [(p.classes, p.urls) for p in pools] == [
        (("batch",), ("http://b:1",)), (("chat",), ("http://a:1", "http://a:2")),
    ]  # fmt: skip
    assert class_pools({}, ["chat"], ("http://a:1",), Knobs()) == ()


@pytest.mark.parametrize("text", ["a:share=1,url=", "a:share=1,url=http://b:1,url=http://c:1"])
def test_a_url_is_given_once_and_is_one(text: str) -> None:
    with pytest.raises(BadInput, match="--class a: url is"):
        class_urls([text])


def served(server: MockServer, word: str) -> list[int | None]:
    """The priorities of the requests of the load, which are not those of a calibration."""
    return [b.get("priority") for b in (one.json() for one in server.served)
            if b.get("max_tokens", b.get("max_completion_tokens")) == int(word)]  # fmt: skip


def test_each_class_reaches_its_own_server_with_its_priority(tmp_path: Path) -> None:
    """What two servers received says where the requests went, and what they carried."""
    out = tmp_path / "out"
    with MockServer([plain_stream(2)]) as one, MockServer([plain_stream(2)]) as two:
        code = run([
            "bench", one.url, "--model", "m", "--users", "4", "--requests", "60", "--warmup", "0",
            "--class", "chat:share=0.7,output_tokens=7,priority=0",
            "--class", f"batch:share=0.3,output_tokens=9,priority=10,url={two.url}",
            "--no-calibration", "--out", str(out), "--quiet",
        ])  # fmt: skip
        assert code in (0, 3)
        chat, batch = served(one, "7"), served(two, "9")
        assert not served(one, "9")
        assert not served(two, "7")
    assert set(chat) == {0}
    assert set(batch) == {10}
    (file,) = out.rglob("requests.parquet")
    counts = Counter(pl.read_parquet(file)["traffic_class"].to_list())
    assert (len(chat), len(batch)) == (counts["chat"], counts["batch"])
    (stored,) = out.rglob("run.json")
    pools = json.loads(stored.read_text())["run"]["configuration"]["pools"]
    assert [pool["classes"] for pool in pools] == [["batch"], ["chat"]]


SECRET = "sekret-word"
HELD = f"http://user:{SECRET}@127.0.0.1:9"
HEAD = "name: s\nmodel: m\nengine: endpoint\n"
MIX = (
    "workload: {arrivals: {users: 2}, duration_s: 3, classes: {a: {share: 0.5}, b: {share: 0.5}}}\n"
)


@pytest.mark.parametrize("url", [HELD, HELD.replace("http:", "ftp:"), HELD.replace("127", "[")])
def test_a_password_in_the_url_of_a_class_is_refused_before_anything_is_stored(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with MockServer([plain_stream(2)]) as one:
        code = run([
            "bench", one.url, "--model", "m", "--users", "2", "--duration", "1",
            "--class", "a:share=0.5", "--class", f"b:share=0.5,url={url}",
            "--no-calibration", "--out", str(out),
        ])  # fmt: skip
        assert one.served == []
    assert code == 2
    assert not out.exists()
    told = capsys.readouterr().err
    assert "--class b" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (f"url: {HELD}\n{MIX}", 4),
        (f"url: http://h:1\n{MIX}experiments:\n  - name: e\n    url: {HELD}\n", 8),
        (f"url: http://h:1\n{MIX}experiments:\n  - name: e\n    pools:\n"
         f"      a: {{url: http://h:2}}\n      b: {{url: '{HELD}'}}\n", 10),
        (f"{MIX}pools:\n  a: {{url: http://h:2}}\n  b: {{url: [http://h:3, '{HELD}']}}\n", 7),
    ],
)  # fmt: skip
def test_a_password_in_a_url_of_a_study_is_refused_before_anything_is_stored(
    body: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "s.yaml", tmp_path / "out"
    file.write_text(HEAD + body)
    assert run(["study", str(file), "--out", str(out)]) == 2
    assert not out.exists()
    told = capsys.readouterr().err
    assert f"s.yaml:{line}: http://...@127.0.0.1: a URL with a user name or password" in told
    assert SECRET not in told
