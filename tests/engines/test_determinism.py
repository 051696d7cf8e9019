"""Deterministic mode: the same seed gives the same bits, whatever else is in the batch, in whatever order and slot."""

import asyncio
import random
from pathlib import Path

import pytest

from miles.engines.client import EngineClient
from miles.engines.embedded.model import LoadedModel, load_model
from miles.engines.embedded.request import Generation, Request, Sampling
from miles.engines.embedded.runner import TorchRunner
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.wire import GenerateRequest, SamplingParams

from .engine_fixtures import PRESET_MODEL, ModelFolders, options_for, running

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]

NUM_SLOTS = 40  # more than one tile
CONTEXT_LEN = 64
NUM_PROBES = 6


def probe(number: int) -> Request:
    """One of the requests whose answers must not change."""
    rng = random.Random(number)
    prompt = tuple(rng.randrange(3, 99) for _ in range(rng.choice([1, 7, 16, 17, 30])))
    cut = {"top_p": 0.8} if number % 3 == 0 else {"top_k": 5} if number % 3 == 1 else {}
    return Request(rid=f"probe{number}", input_ids=prompt, sampling=sampling(12, seed=number, **cut))


def sampling(length: int, seed: int, top_p: float = 1.0, top_k: int = 0, temperature: float = 0.9) -> Sampling:
    return Sampling(max_new_tokens=length, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, ignore_eos=True)


def company(rng: random.Random) -> list[Request]:
    """Other requests of all lengths."""
    others = []
    for i in range(rng.randrange(60)):
        prompt = tuple(rng.randrange(3, 99) for _ in range(rng.randrange(1, 40)))
        how = sampling(rng.randrange(1, 20), seed=rng.randrange(2**40), top_k=rng.choice([0, 3]), temperature=rng.random() + 0.1)
        others.append(Request(rid=f"other{i}", input_ids=prompt, sampling=how))
    return others


Bits = dict[str, tuple[list[int], list[float]]]


def serve(model: LoadedModel, requests: list[Request], rng: random.Random, *, deterministic: bool = True) -> Bits:
    """Let requests join at random steps, some be aborted, and give what the probes got."""
    runner = TorchRunner(model, NUM_SLOTS, CONTEXT_LEN, deterministic=deterministic)
    scheduler = Scheduler(runner, NUM_SLOTS, "0", model.end_ids, model.tokenizer.decode)
    queue, done = list(requests), []
    while queue or scheduler.has_work:
        count = rng.randrange(1 + len(queue)) if scheduler.has_work else len(queue)
        scheduler.add([Generation(request) for request in queue[:count]])
        del queue[:count]
        done += scheduler.step()
        if rng.random() < 0.2:
            victim = f"other{rng.randrange(60)}"
            scheduler.abort(lambda request, victim=victim: request.rid == victim)
    return {g.request.rid: (g.output_ids, g.logprobs) for g in done if g.request.rid.startswith("probe")}


def check_law(folder: Path, num_companies: int) -> None:
    model = load_model(str(folder))
    probes = [probe(number) for number in range(NUM_PROBES)]
    alone: Bits = {}
    for each in probes:
        alone |= serve(model, [each], random.Random(0))
    for seed in range(num_companies):
        rng = random.Random(seed)
        mixed = [*probes, *company(rng)]
        rng.shuffle(mixed)
        assert serve(model, mixed, rng) == alone


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_answers_do_not_depend_on_company(kind: str, folders: dict[str, ModelFolders]) -> None:
    check_law(folders[kind].first, num_companies=3)


def test_answers_do_not_depend_on_company_for_the_preset() -> None:
    check_law(PRESET_MODEL, num_companies=10)


def test_the_default_mode_agrees_to_rounding(model_folder: Path) -> None:
    model = load_model(str(model_folder))
    probes = [probe(number) for number in range(NUM_PROBES)]
    exact = serve(model, probes, random.Random(0))
    default = serve(model, probes, random.Random(0), deterministic=False)
    for rid, (tokens, logprobs) in exact.items():
        assert default[rid][0] == tokens
        assert default[rid][1] == pytest.approx(logprobs, abs=1e-4)


async def test_a_group_asked_as_one_request_is_the_group_asked_as_many(model_folder: Path) -> None:
    with running(options_for(model_folder, deterministic=True)) as address:
        async with EngineClient(address) as client:
            group = [
                GenerateRequest(f"g-{seed}", (5, 9, 12), SamplingParams(20, 0.8, top_p=0.9, ignore_eos=True, sampling_seed=seed))
                for seed in range(6)
            ]
            together = await client.generate(group)
            alone = await asyncio.gather(*(client.generate([request]) for request in group))
    assert together == [answer for answers in alone for answer in answers]
