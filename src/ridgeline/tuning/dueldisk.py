"""What of a duel is on the disk, and which of it a duel that goes on may use.

A round of a contender is the run directory NAME-rN. A process that was killed leaves whole rounds
and perhaps a begun one.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import GIVEN_UP
from ridgeline.domain.knobs import Configuration
from ridgeline.store.codec import to_plain
from ridgeline.store.run_directory import StoredRun, is_finished, read_run, set_aside
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate

APART_S = 600.0  # a host drifts by 20 to 30 % in as many seconds: later is another hour


@dataclass(frozen=True)
class DuelDisk:
    """The runs of one duel. names: of the contenders' experiments, by their words. first: the
    number of its first round; most: rounds that it may have.
    """

    folder: Path
    setting: Setting
    candidates: Sequence[Candidate]
    names: Mapping[str, str]
    first: int
    most: int

    def of(self, candidate: Candidate, number: int) -> Path:
        """Where a round of its own is, 1 the first."""
        return self.folder / f"{self.names[candidate.words]}-r{self.first - 1 + number}"

    def is_there(self, candidate: Candidate, number: int) -> bool:
        """Whether a finished run of this duel is: not that of a finalist of an earlier one, from
        before the search went on with a larger budget.
        """
        folder = self.of(candidate, number)
        if not is_finished(folder):
            return False
        meta = read_run(folder).meta
        return _wanted(meta.configuration) == self._served.get(meta.experiment)

    @cached_property
    def _served(self) -> dict[str, tuple[Any, str]]:
        return {self.names[c.words]: _wanted(self.setting.served(c)) for c in self.candidates}

    def runs(self, candidate: Candidate, rounds: int) -> dict[int, StoredRun]:
        """Its runs of the first so many rounds of its own, by the round's number in the study."""
        own = (n for n in range(1, rounds + 1) if self.is_there(candidate, n))
        return {self.first - 1 + n: read_run(self.of(candidate, n)) for n in own}

    def deaths(self, candidate: Candidate) -> frozenset[int]:
        """Rounds in which its engine died, by their number in the study.

        Also of a round that a kill has cut short: it is not measured again. And the baseline was in
        the earlier duels, where it may have died.
        """
        before = self.first - 1
        since = 1 if candidate.change else 1 - before
        return frozenset(
            before + n
            for n in range(since, self.most + 1)
            if self.is_there(candidate, n) and _has_died(read_run(self.of(candidate, n)))
        )

    def leave_cut(self, number: int, due: Iterable[Candidate], now: datetime.datetime) -> list[str]:
        """Set the runs of a begun round aside if the last of them ended longer than `APART_S` ago:
        beside runs of now they would be a pair that the host's drift parts. Deaths stay.

        Returns the names of the runs that are left; they are measured again.
        """
        begun = [read_run(self.of(c, number)) for c in due if self.is_there(c, number)]
        alive = [run for run in begun if not _has_died(run)]
        ends = [datetime.datetime.fromisoformat(run.ended_at) for run in alive]
        if not ends or (now - max(ends)).total_seconds() <= APART_S:
            return []
        for run in alive:
            set_aside(run.folder)
        return [run.folder.name for run in alive]


def _wanted(configuration: Configuration) -> tuple[Any, str]:
    """What tells contenders apart, as it comes back from the disk."""
    return to_plain(configuration.knobs), configuration.routing


def _has_died(run: StoredRun) -> bool:
    """Whether its engine did not start or died; a start that a budget ended tells nothing."""
    given_up = run.failure is not None and GIVEN_UP in run.failure.text
    return run.state == "failed" and not given_up
