"""SGLang's endpoints for weights and memory, one function each, on the client of one engine.

    begin ─► update (bucket by bucket) ─► end         the version counts from the last bucket on
    release ─► (the policy trains) ─► resume          engines that share their devices with the policy

Only what may be asked twice without harm is repeated when a connection breaks: a bucket that is broadcast is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from miles.engines.client import EngineClient
from miles.engines.transfer.specs import TensorSpec
from miles.errors import EngineError

MemoryTag = Literal["weights", "kv_cache"]
ALREADY_OPEN = "already open"
ALREADY_LOADED = "already loaded"
ADAPTER, OTHER_ADAPTER = "policy", "policy-other"


@dataclass(frozen=True, slots=True)
class Landing:
    """What a bucket does beside changing weights.

    version: that the weights have with it; None while others are still to come.
    flushes: whether cached prefixes of the old weights are dropped.
    """

    version: int | None = None
    flushes: bool = False

    def to_wire(self) -> dict[str, Any]:
        """The fields of an update."""
        named = {} if self.version is None else {"weight_version": str(self.version)}
        return {"flush_cache": self.flushes, **named}


async def begin_weight_update(client: EngineClient) -> None:
    """Open a session of updates; one that a broken-off publication left open is closed first."""
    try:
        await client.steer("/begin_weight_update", {}, repeatable=False)
    except EngineError as error:
        if ALREADY_OPEN not in str(error):
            raise
        await end_weight_update(client)
        await client.steer("/begin_weight_update", {}, repeatable=False)


async def end_weight_update(client: EngineClient) -> None:
    """Close the session; what was loaded counts."""
    await client.steer("/end_weight_update", {}, repeatable=False)


async def update_weights_from_tensor(client: EngineClient, payloads: Sequence[str], landing: Landing) -> None:
    """Have the engine copy a bucket out of memory that it shares with the policy; one payload for each of its ranks."""
    body = {"serialized_named_tensors": list(payloads), **landing.to_wire()}
    await client.steer("/update_weights_from_tensor", body, repeatable=False)
    _note(client, landing)


async def update_weights_from_distributed(
    client: EngineClient, specs: Sequence[TensorSpec], group: str, landing: Landing
) -> None:
    """Have the engine receive a bucket, sent as one run of bytes, from rank 0 of the group; returns when it is loaded."""
    body = {
        "names": [spec.name for spec in specs],
        "dtypes": [spec.dtype for spec in specs],
        "shapes": [list(spec.shape) for spec in specs],
        "group_name": group,
        "load_format": "flattened_bucket",
        **landing.to_wire(),
    }
    await client.steer("/update_weights_from_distributed", body, repeatable=False)
    _note(client, landing)


async def init_weights_update_group(client: EngineClient, group: str, host: str, port: int, size: int, backend: str) -> None:
    """Have the engine's ranks join a group as ranks 1, 2, …; returns when all have met."""
    place = {"master_address": host, "master_port": port, "rank_offset": 1, "world_size": size}
    await client.steer("/init_weights_update_group", {**place, "group_name": group, "backend": backend}, repeatable=False)


async def destroy_weights_update_group(client: EngineClient, group: str) -> None:
    """Have the engine leave a group."""
    await client.steer("/destroy_weights_update_group", {"group_name": group}, repeatable=False)


async def load_adapter(client: EngineClient, folder: str, landing: Landing) -> None:
    """Have a paused engine put a LoRA adapter, in peft's format, in the place of the one before; its own weights stay.

    What requests ask for is loaded at every moment, as they go on arriving meanwhile. SGLang holds the old adapter until no
    request needs it any more, so none may be in flight there.
    """
    before = client.adapter
    client.adapter = await _load_beside(client, before or ADAPTER, folder)
    if landing.version is not None:
        body = {"new_version": str(landing.version), "abort_all_requests": False}
        await client.steer("/update_weight_version", body, repeatable=True)
    if landing.flushes:
        await client.flush_cache()
    _note(client, landing)
    if before not in ("", client.adapter):
        await client.steer("/unload_lora_adapter", {"lora_name": before}, repeatable=False)


async def _load_beside(client: EngineClient, name: str, folder: str) -> str:
    """Load an adapter in the place of one of the same name, or where the engine replaces none, under another; its name."""
    try:
        await client.steer("/load_lora_adapter", {"lora_name": name, "lora_path": folder}, repeatable=False)
    except EngineError as error:
        if ALREADY_LOADED not in str(error):
            raise
        name = OTHER_ADAPTER if name == ADAPTER else ADAPTER
        await client.steer("/load_lora_adapter", {"lora_name": name, "lora_path": folder}, repeatable=False)
    return name


async def weight_checksums(client: EngineClient) -> list[Mapping[str, str]]:
    """The checksum of every tensor, for each rank of the engine."""
    answer = await client.steer("/weights_checker", {"action": "checksum"}, repeatable=True)
    try:
        return [rank["checksums"] for rank in answer["ranks"]]
    except (KeyError, TypeError) as error:
        raise EngineError(f"{client.address}/weights_checker gave no checksums: {answer!r}.") from error


async def release_memory(client: EngineClient, tags: Sequence[MemoryTag]) -> None:
    """Have a paused engine give memory back until it is resumed."""
    await client.steer("/release_memory_occupation", {"tags": list(tags)}, repeatable=False)


async def resume_memory(client: EngineClient, tags: Sequence[MemoryTag]) -> None:
    """Have the engine take the memory again; weights are undefined until they are published."""
    await client.steer("/resume_memory_occupation", {"tags": list(tags)}, repeatable=False)


def _note(client: EngineClient, landing: Landing) -> None:
    if landing.version is not None:
        client.note_published(landing.version)
