"""The newest checkpoints and the best one stay; the rest goes only after a newer one is whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.loops.records import RunJournal
from miles.loops.retention import RetainingSaver, superseded
from miles.tracking.run_folder import open_run_folder

pytestmark = pytest.mark.unit
NAMES = st.lists(st.integers(0, 50), unique=True, max_size=8).map(lambda ids: [f"rollout-{i:06d}" for i in sorted(ids)])


@given(NAMES, st.dictionaries(st.integers(0, 50).map("rollout-{:06d}".format), st.floats(0, 1), max_size=8), st.integers(1, 4))
def test_the_newest_and_the_best_stay(names, scores, keep):
    gone = superseded(names, scores, keep)
    stay = [name for name in names if name not in gone]
    assert stay[-keep:] == names[-keep:]
    assert len(stay) <= keep + 1
    known = [name for name in names if name in scores]
    assert not known or max(scores[name] for name in known) in [scores[name] for name in stay if name in scores]


class Silent:
    """Neither writes nor reports."""

    def write(self, row):
        pass

    def progress(self, row, done, total):
        pass


class Writes:
    """A saver that makes the folder."""

    def __init__(self, folder):
        self.folder = folder

    async def save(self, rollouts_done, weight_version, *, weights_published):
        self.folder.checkpoint_for(rollouts_done - 1).mkdir(parents=True)

    async def settle(self):
        pass


async def test_a_run_keeps_what_it_was_told(tmp_path):
    folder = open_run_folder(tmp_path / "run", None, "train")
    journal = RunJournal(Silent(), Silent(), 10)
    saver = RetainingSaver(Writes(folder), folder, journal, 2, "eval/reverse")
    for done, score in enumerate([0.3, 0.9, 0.5, None, 0.4], start=1):
        if score is not None:
            journal.write({"eval/reverse": score, "eval/weight_version": done}, done)
        await saver.save(done, done, weights_published=True)
    assert sorted(path.name for path in folder.checkpoints.glob("rollout-*")) == [f"rollout-{i:06d}" for i in (1, 3, 4)]
