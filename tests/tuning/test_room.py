"""How many trials a host carries at once: its GPUs, and the cores that each trial needs."""

from dataclasses import replace

import pytest

from ridgeline.domain.knobs import Launch
from ridgeline.tuning.room import Packing, room_of
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from support.sideengine import on_gpus

TWO = Candidate({"tensor_parallel_size": 2})
ONE = Candidate({"max_num_seqs": 64})


@pytest.fixture(autouse=True)
def _no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_as_many_as_gpus_where_the_cores_suffice_and_fewer_with_a_reason() -> None:
    """A client, two cores of the engine and one for its GPU: four for each trial."""
    assert room_of(on_gpus(4), cores=16).most == 4
    three = room_of(on_gpus(4), cores=15)
    assert three.most == 3
    assert "up to 3 trials side by side on 4 GPUs, not 4: a trial takes 4 cores" in three.why
    alone = room_of(on_gpus(4), cores=7)
    assert not alone.several
    assert alone.why.startswith("one trial at a time on 4 GPUs")


def test_what_needs_two_gpus_takes_two() -> None:
    room = room_of(on_gpus(4), cores=64)
    assert room.fits([TWO, ONE, Candidate()])
    assert room.fits([TWO, TWO])
    assert not room.fits([TWO, TWO, ONE])
    assert not room.fits([ONE] * 5)


def test_gpus_that_are_not_there_or_not_ours_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert room_of(on_gpus(8), cores=64, visible=2).gpus == ("0", "1")
    assert "(8 are counted in the file)" in room_of(on_gpus(8), cores=64, visible=2).why
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab,7")
    assert room_of(on_gpus(2), cores=64).gpus == ("5", "GPU-ab")
    assert room_of(on_gpus(4), cores=64).gpus == ("5", "GPU-ab", "7")


def with_spec(made: Setting, **changes: object) -> Setting:
    return replace(made, spec=replace(made.spec, **changes))  # type: ignore[arg-type]


def test_one_gpu_a_twin_another_host_and_the_users_word_are_one_at_a_time() -> None:
    one = room_of(on_gpus(1), cores=64)
    assert (one.several, one.why) == (False, "")
    made = on_gpus(4)
    assert not room_of(with_spec(made, side_by_side=1), cores=64).several
    assert room_of(with_spec(made, side_by_side=2), cores=64).most == 2
    twin = replace(made, configuration=replace(made.configuration, engine="twin"))
    assert not room_of(twin, cores=64).several
    far = replace(made.configuration, launch=Launch(host="there"))
    assert not room_of(replace(made, configuration=far), cores=64).several
    client = replace(made.workload.client, workers="auto")
    auto = room_of(replace(made, workload=replace(made.workload, client=client)), cores=64)
    assert not auto.several
    assert "client.workers auto" in auto.why


def test_gpus_are_handed_out_once() -> None:
    packing = Packing(("0", "1", "2", "3"))
    assert packing.take(2) == ("0", "1")
    assert packing.take(1) == ("2",)
    with pytest.raises(ValueError, match="2 GPUs are asked for, 1 are free"):
        packing.take(2)
    packing.give(("0", "1"))
    assert packing.take(2) == ("0", "1")
