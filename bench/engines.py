"""The embedded engine and sglang side by side on this CPU, through the same client: speed, latency, and updates from disk.

    python bench/engines.py [--model FOLDER] [--concurrent 1 16 64 128] [--new-tokens 32] [--seconds 5] [--updates 20] [--group 8]

Both servers run one torch thread and hold the same model (by default the preset's). They take turns, so that neither has the
machine's other core to itself; each request is a prompt of its own, so that no prefix is shared. Then groups of one prompt each
are asked for as one request with a list of samples, as many requests, and (sglang) as one request with ``n``, which knows but one
seed for all of them. sglang needs ``requirements/sglang-cpu.txt``.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

from miles.engines.client import EngineClient
from miles.engines.sglang_server.arguments import SglangOptions
from miles.engines.sglang_server.server import SglangServer
from miles.engines.wire import GenerateRequest, SamplingParams

PRESET = Path(__file__).parents[1] / "src/miles/presets/reverse/model"
PROMPT_TOKENS, CONTEXT_TOKENS, SLOTS = 12, 128, 128
ROUNDS = 5  # in which the ways take turns, so that what else the machine does meets all of them
counter = itertools.count()
Ask = Callable[[EngineClient, list[GenerateRequest]], Awaitable[None]]


@asynccontextmanager
async def embedded(model: Path, logs: Path) -> AsyncIterator[EngineClient]:
    """An embedded engine as a process."""
    log = (logs / "embedded.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "miles.engines.embedded", "--model-path", str(model), "--num-slots", str(SLOTS),
        "--context-len", str(CONTEXT_TOKENS), stdout=log, stderr=log,
    )  # fmt: skip
    try:
        words = ""
        while "listening at" not in words and process.returncode is None:
            await asyncio.sleep(0.1)
            words = (logs / "embedded.log").read_text()
        async with EngineClient(words.split("listening at ")[1].split()[0]) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()
        log.close()


@asynccontextmanager
async def sglang(model: Path, logs: Path) -> AsyncIterator[EngineClient]:
    """A sglang server as miles starts it."""
    options = SglangOptions(str(model), "cpu", CONTEXT_TOKENS, SLOTS, first_port=25000)
    server = SglangServer(options, logs / "sglang.log")
    try:
        async with EngineClient(await server.start()) as client:
            yield client
    finally:
        await server.stop()


async def answer(client: EngineClient, new_tokens: int) -> float:
    """One request; seconds until its answer."""
    number, begin = next(counter), time.perf_counter()
    prompt = tuple(3 + (number * 7 + place * (1 + number % 11)) % 90 for place in range(PROMPT_TOKENS))
    await client.generate([GenerateRequest(str(number), prompt, SamplingParams(new_tokens, ignore_eos=True))])
    return time.perf_counter() - begin


async def load(client: EngineClient, concurrent: int, new_tokens: int, seconds: float) -> tuple[float, list[float]]:
    """Keep so many requests in flight for a while; tokens per second and latencies."""
    await asyncio.gather(*(answer(client, new_tokens) for _ in range(concurrent)))
    begin, latencies = time.perf_counter(), []

    async def ask() -> None:
        while time.perf_counter() - begin < seconds:
            latencies.append(await answer(client, new_tokens))

    await asyncio.gather(*(ask() for _ in range(concurrent)))
    return len(latencies) * new_tokens / (time.perf_counter() - begin), sorted(latencies)


def group_of(size: int, new_tokens: int) -> list[GenerateRequest]:
    """The samples of a prompt of their own."""
    number = next(counter)
    prompt = tuple(3 + (number * 5 + place * (1 + number % 13)) % 90 for place in range(PROMPT_TOKENS))
    return [GenerateRequest(f"{number}-{place}", prompt, SamplingParams(new_tokens, ignore_eos=True)) for place in range(size)]


async def as_list(client: EngineClient, requests: list[GenerateRequest]) -> None:
    """One request with a list of samples."""
    await client.generate(requests)


async def as_many(client: EngineClient, requests: list[GenerateRequest]) -> None:
    """A request for each sample."""
    await asyncio.gather(*(client.generate([request]) for request in requests))


async def as_n(client: EngineClient, requests: list[GenerateRequest]) -> None:
    """One request with ``n``."""
    params = requests[0].sampling.to_wire() | {"n": len(requests)}
    body = {"input_ids": list(requests[0].input_ids), "sampling_params": params, "return_logprob": True}
    async with aiohttp.ClientSession() as session, session.post(f"{client.address}/generate", json=body) as response:
        if len(await response.json()) != len(requests):
            sys.exit(f"{client.address} does not serve n = {len(requests)}")


async def group_speed(client: EngineClient, ask: Ask, group: int, new_tokens: int, seconds: float) -> float:
    """Tokens per second with so many groups in flight that 64 samples are."""
    done, begin = 0, time.perf_counter()

    async def keep_asking() -> None:
        nonlocal done
        while time.perf_counter() - begin < seconds:
            await ask(client, group_of(group, new_tokens))
            done += group

    await asyncio.gather(*(keep_asking() for _ in range(max(1, 64 // group))))
    return done * new_tokens / (time.perf_counter() - begin)


async def update_times(client: EngineClient, model: Path, count: int, new_tokens: int) -> list[float]:
    """Seconds that engines stand still for an update from disk, under 16 requests in flight."""
    running = asyncio.create_task(load(client, 16, new_tokens, seconds=count * 0.2))
    times = []
    for version in range(1, count + 1):
        begin = time.perf_counter()
        await client.pause("retract")
        await client.update_weights_from_disk(str(model), version, flushes=True)
        await client.continue_generation()
        times.append(time.perf_counter() - begin)
        await asyncio.sleep(0.1)
    await running
    return times


def percentile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]


async def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=PRESET)
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 16, 64, 128])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--group", type=int, default=8, help="samples of one prompt")
    options = parser.parse_args()
    print(f"load average at the start: {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} CPUs")
    print("| engine | in flight | tokens/s | p50 ms | p95 ms | p99 ms |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as logs:
        async with embedded(options.model, Path(logs)) as ours, sglang(options.model, Path(logs)) as theirs:
            for concurrent in options.concurrent:
                for name, client in (("embedded", ours), ("sglang", theirs)):
                    speed, times = await load(client, concurrent, options.new_tokens, options.seconds)
                    shown = " | ".join(f"{1000 * percentile(times, share):.0f}" for share in (0.5, 0.95, 0.99))
                    print(f"| {name} | {concurrent} | {speed:.0f} | {shown} |")
            print(f"\n| engine | groups of {options.group} as | tokens/s |\n|---|---|---|")
            ways = {
                ("embedded", "one request"): (ours, as_list), ("embedded", "many requests"): (ours, as_many),
                ("sglang", "one request"): (theirs, as_list), ("sglang", "many requests"): (theirs, as_many),
                ("sglang", "one request with n"): (theirs, as_n),
            }  # fmt: skip
            speeds = [
                [await group_speed(*way, options.group, options.new_tokens, options.seconds) for way in ways.values()]
                for _ in range(ROUNDS)
            ]
            for (name, words), measured in zip(ways, zip(*speeds, strict=True), strict=True):
                print(f"| {name} | {words} | {statistics.median(measured):.0f} ({min(measured):.0f} to {max(measured):.0f}) |")
            for name, client in (("embedded", ours), ("sglang", theirs)):
                times = await update_times(client, options.model, options.updates, options.new_tokens)
                print(f"{name}: {options.updates} updates from disk under load, median {1000 * statistics.median(times):.0f} ms, "
                      f"longest {1000 * max(times):.0f} ms")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
