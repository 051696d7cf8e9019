"""Seconds of a weight update by each transport, for a toy model and for one of SmolLM2-135M's shape with random weights.

    python -m bench.updates [--engines embedded sglang] [--models toy 135m] [--ways disk tensor broadcast] [--updates 10]

One engine on this machine, idle, float32. ``all`` is a whole publication (gather, pause, update, continue), ``pause`` what the
engine stands still for, ``check`` the comparison of checksums that --check-weight-update adds. Medians; the first update, which
joins groups and touches memory for the first time, is left out.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from tests.engines.engine_fixtures import options_for, running
from tests.engines.ways import Fleet, Policy, transport_of
from transformers import LlamaConfig, LlamaForCausalLM

import miles.presets
from miles.clock import WallClock
from miles.engines.client import EngineClient
from miles.engines.sglang_server.arguments import SglangOptions
from miles.engines.sglang_server.server import SglangServer
from miles.weights.check import WeightCheck
from miles.weights.folder import default_parent
from miles.weights.publish import Publisher
from miles.weights.transport import OneEngine

TOY = Path(miles.presets.__file__).parent / "reverse" / "model"
SHAPE_135M = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
BUCKET_BYTES = 512 * 2**20


def model_folder(name: str, root: Path) -> Path:
    """The preset's model, or a random one of 135 M parameters with the preset's tokenizer."""
    if name == "toy":
        return TOY
    folder = root / name
    if not folder.exists():
        LlamaForCausalLM(LlamaConfig(**SHAPE_135M)).save_pretrained(folder)
        for file in TOY.glob("*token*"):
            shutil.copy(file, folder)
    return folder


@asynccontextmanager
async def serving(engine: str, folder: Path, logs: Path) -> AsyncIterator[str]:
    """The address of one engine."""
    if engine == "embedded":
        with running(options_for(folder, context_len=64)) as address:
            yield address
        return
    server = SglangServer(SglangOptions(str(folder), "cpu", context_len=64, max_running_requests=8), logs / "sglang.log")
    try:
        yield await asyncio.wait_for(server.start(), 300)
    finally:
        await server.stop()


async def measured(address: str, policy: Policy, way: str, folder: Path, updates: int) -> dict[str, float]:
    """Medians in milliseconds, and the bytes of an update in MiB."""
    async with EngineClient(address) as client:
        publisher = Publisher(transport_of(way, policy, folder, BUCKET_BYTES), Fleet(client), "retract", 300.0, WallClock())
        check, rows, checks = WeightCheck(policy.weights), [], []
        for version in range(1, updates + 2):
            rows.append(await publisher.publish(version))
            begin = time.perf_counter()
            await check.compare(version, OneEngine(0, client))
            checks.append(time.perf_counter() - begin)
        for group in list(policy.sender._groups):
            policy.sender.leave(group)

    def median(key: str) -> float:
        return 1000 * statistics.median(row[key] for row in rows[1:])

    times = {"all": median("perf/update_weights_time"), "pause": median("perf/engines_paused_time")}
    return {**times, "check": 1000 * statistics.median(checks[1:]), "MiB": rows[-1]["perf/update_weights_bytes"] / 2**20}


async def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["embedded", "sglang"])
    parser.add_argument("--models", nargs="+", default=["toy", "135m"])
    parser.add_argument("--ways", nargs="+", default=["disk", "tensor", "broadcast"])
    parser.add_argument("--updates", type=int, default=10)
    options: Any = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load average at the start: {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} CPUs")
    print("| engine | model | way | MiB | all ms | pause ms | check ms |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=default_parent()) as root:
        for name in options.models:
            folder = model_folder(name, Path(root))
            policy = Policy(folder)
            for engine in options.engines:
                async with serving(engine, folder, Path(root)) as address:
                    for way in options.ways:
                        aside = Path(tempfile.mkdtemp(dir=root))
                        found = await measured(address, policy, way, aside, options.updates)
                        shutil.rmtree(aside)
                        numbers = f"{found['MiB']:.1f} | {found['all']:.0f} | {found['pause']:.0f} | {found['check']:.0f}"
                        print(f"| {engine} | {name} | {way} | {numbers} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
