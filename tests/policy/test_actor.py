"""The worker and its client: what crosses the process border, and what an error looks like on the other side."""

import asyncio
import pickle
import subprocess
import sys

import pytest
import torch
from ray.exceptions import ActorDiedError, RayTaskError, WorkerCrashedError

from miles.errors import CheckpointError, PolicyError
from miles.policy.actor import PolicyWorker
from miles.policy.client import PolicyClient
from miles.policy.rank_calls import RankCalls
from tests.policy.builders import PRESET, config, derived, rollout, sample

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def process_settings():
    """What a worker sets for its whole process is put back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def worker():
    """A worker in this process."""
    return PolicyWorker(config(deterministic=True), derived(4))


class Method:
    """A remote method: arguments and answer go through pickle, errors come back as Ray wraps them."""

    def __init__(self, call):
        self.call = call

    def remote(self, *arguments):
        return asyncio.ensure_future(self.run(arguments))

    def options(self, **_):
        return self

    async def run(self, arguments):
        try:
            return pickle.loads(pickle.dumps(self.call(*pickle.loads(pickle.dumps(arguments)))))
        except Exception as error:  # noqa: BLE001 - Ray wraps every error
            raise RayTaskError("train_on", "a traceback", error) from None


class Handle:
    """An actor handle without Ray."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        return Method(getattr(self.target, name))


def ranks_of(*handles, who="the policy"):
    """Calls to these handles."""
    return RankCalls(handles, who)


def some_rollout():
    return rollout([[sample(0, i, (1, 5, 6), (7, 8 + i, 2), reward=float(i % 2)) for i in range(4)]])


async def test_a_policy_trains_exports_saves_and_loads(worker, tmp_path):
    client = PolicyClient(ranks_of(Handle(worker)))
    report = await client.train_on(some_rollout(), 0)
    assert report.num_optimizer_steps == 1
    assert report.metrics["train/grad_norm"] > 0
    await client.export_weights(tmp_path / "weights")
    await client.save(tmp_path / "kept")
    await client.train_on(some_rollout(), 1)
    assert (await client.info())["num_optimizer_steps"] == 2
    await client.load(tmp_path / "kept")
    assert await client.info() | {"pid": 0} == {
        "num_parameters": 406_784,
        "num_optimizer_steps": 1,
        "pid": 0,
        "shares_prompts": 1,
    }
    assert (tmp_path / "weights/model.safetensors").read_bytes()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1


async def test_the_workers_own_errors_arrive_as_they_are(worker, tmp_path):
    client = PolicyClient(ranks_of(Handle(worker)))
    with pytest.raises(CheckpointError, match="is no complete checkpoint"):
        await client.load(tmp_path / "gone")
    with pytest.raises(PolicyError, match="has 1 samples, but"):
        await client.train_on(rollout([[sample(0, 0, (1,), (2,))]]), 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(PolicyError, match="the weights could not be written to .*file"):
        await client.export_weights(tmp_path / "file" / "weights")


class Noted:
    """Has something to say when it has started."""

    def start(self):
        return "rows are masked", "and that is all"

    def info(self):
        return {}


async def test_what_ranks_say_at_their_start_is_kept_once():
    client = PolicyClient(ranks_of(Handle(Noted())), critic=ranks_of(Handle(Noted()), who="the critic"))
    assert client.notes == ()
    for _ in range(2):
        await client.info()
        assert client.notes == Noted().start()


class Broken:
    """Fails as no one expected."""

    def start(self):
        return None

    def train_on(self, batch):
        raise ZeroDivisionError("by zero")


async def test_an_unexpected_error_names_what_was_done():
    with pytest.raises(PolicyError, match="failed while training on rollout 0: ZeroDivisionError"):
        await PolicyClient(ranks_of(Handle(Broken()))).train_on(some_rollout(), 0)


class Dead(Handle):
    """The handle of an actor whose process has ended."""

    class Call:
        """Any of its methods."""

        def remote(self, *arguments):
            ended = asyncio.get_running_loop().create_future()
            ended.set_exception(ActorDiedError())
            ended.exception()  # read, so that an answer nobody waits for is no warning
            return ended

    def __getattr__(self, name):
        return self.Call()


@pytest.mark.parametrize("failure", [ActorDiedError(), WorkerCrashedError()])
async def test_a_dead_process_is_a_policy_error_with_its_cause(tmp_path, monkeypatch, failure):
    monkeypatch.setattr(f"{__name__}.ActorDiedError", lambda: failure)
    client = PolicyClient(ranks_of(Dead(None)))
    with pytest.raises(PolicyError, match="(process ended|Ray failed) while saving .*kept") as caught:
        await client.save(tmp_path / "kept")
    assert caught.value.__cause__ is failure
    with pytest.raises(PolicyError, match="while starting"):
        await client.info()


async def test_the_watch_ends_with_the_first_process_that_ends(worker, monkeypatch):
    monkeypatch.setattr("miles.policy.rank_calls.WATCH_SECONDS", 0.001)
    monkeypatch.setattr("miles.policy.rank_calls.OWN_WORDS_SECONDS", 0.01)
    watch = asyncio.create_task(ranks_of(Handle(worker)).watch())
    await asyncio.wait([watch], timeout=0.05)
    assert not watch.done()
    watch.cancel()
    with pytest.raises(PolicyError, match="rank 1 of the policy's process ended while the run went on"):
        await asyncio.wait_for(ranks_of(Handle(worker), Dead(None)).watch(), 5)


async def test_a_model_that_cannot_be_loaded_is_said_by_info(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    client = PolicyClient(ranks_of(Handle(PolicyWorker(config(tmp_path), derived(4)))))
    with pytest.raises(PolicyError, match="cannot be loaded"):
        await client.info()
    with pytest.raises(PolicyError, match="the policy has no model"):
        await client.export_weights(tmp_path / "weights")


def test_a_batch_of_128_samples_is_a_few_tens_of_kilobytes():
    from miles.policy.batch import TrainBatch

    groups = [[sample(g, i, tuple(range(1, 14)), tuple(range(1, 9))) for i in range(8)] for g in range(16)]
    assert len(pickle.dumps(TrainBatch.from_rollout(rollout(groups), 0))) < 40_000


def test_importing_the_client_loads_neither_torch_nor_ray():
    code = "import sys, miles.policy.client; print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout == "[]\n"


def test_the_preset_is_where_the_tests_look():
    assert (PRESET / "model.safetensors").is_file()
