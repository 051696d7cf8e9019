"""Finished groups on disk: one group a line, so that a checkpoint keeps what was sampled and not yet trained.

A prompt is written as its index alone; the prompt file gives the rest, and must still be the same.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from miles.errors import CheckpointError
from miles.rollout.contracts import Prompts
from miles.types import Group, Sample, SampleStatus, VersionSpan

OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
REMEDY = "Resume from another checkpoint, or pass --accept-missing-state to sample these groups again"


def write_groups(path: Path, groups: Sequence[Group]) -> str:
    """Write the groups and return the digest of the file.

    Raises:
        CheckpointError: the file cannot be written, or a sample's metadata is not JSON-able.
    """
    try:
        text = b"".join(orjson.dumps(as_line(group), option=OPTIONS) for group in groups)
        path.write_bytes(text)
    except TypeError as error:
        raise CheckpointError(
            f"finished groups cannot be saved: {error}. Let rewards and generate functions keep only JSON-able metadata"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}. Free some space there") from error
    return digest_of(text)


def read_groups(path: Path, digest: str, prompts: Prompts) -> list[Group]:
    """The groups of a file, in the order in which they were written.

    Raises:
        CheckpointError: the file is missing or not the one that was written, or the prompts have changed since.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}. {REMEDY}") from error
    if digest_of(text) != digest:
        raise CheckpointError(f"{path} is damaged: it is not what the checkpoint wrote. {REMEDY}")
    try:
        return [from_line(orjson.loads(line), prompts, path) for line in text.splitlines()]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds a group that cannot be read ({error!r}). {REMEDY}") from error


def digest_of(text: bytes) -> str:
    """BLAKE2b, 16 bytes, in hexadecimal."""
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def as_line(group: Group) -> dict[str, Any]:
    """A group as JSON."""
    prompt_ids = group.prompt.token_ids
    samples = [sample_fields(sample) for sample in group.samples]
    return {"index": group.index, "version": group.version_admitted, "prompt_ids": prompt_ids, "samples": samples}


def sample_fields(sample: Sample) -> dict[str, Any]:
    """A sample as JSON; log-probs keep every bit."""
    return {
        "prompt_ids": sample.prompt_ids,
        "response_ids": sample.response_ids,
        "logprobs": sample.logprobs,
        "loss_mask": sample.loss_mask,
        "versions": [list(span) for span in sample.versions],
        "status": str(sample.status),
        "text": sample.text,
        "reward": sample.reward,
        "metadata": dict(sample.metadata),
    }


def from_line(line: dict[str, Any], prompts: Prompts, path: Path) -> Group:
    """The group of a line.

    Raises:
        CheckpointError: the prompt at its place is another one.
    """
    index = int(line["index"])
    prompt = prompts.prompt(index)
    if list(prompt.token_ids) != line["prompt_ids"]:
        raise CheckpointError(
            f"{path}: prompt {index} (row {prompt.row} of the prompt file) is not the one that was sampled; the prompt file "
            f"or the tokenizer has changed. Put them back. {REMEDY}"
        )
    samples = tuple(read_sample(index, place, fields) for place, fields in enumerate(line["samples"]))
    return Group(prompt, samples, int(line["version"]))


def read_sample(group_index: int, place: int, fields: dict[str, Any]) -> Sample:
    """The sample at its place in a group."""
    return Sample(
        group_index=group_index,
        sample_index=place,
        prompt_ids=integers(fields["prompt_ids"]),
        response_ids=integers(fields["response_ids"]),
        logprobs=tuple(float(value) for value in fields["logprobs"]),
        loss_mask=integers(fields["loss_mask"]),
        versions=tuple(VersionSpan(*span) for span in fields["versions"]),
        status=SampleStatus(fields["status"]),
        text=fields["text"],
        reward=fields["reward"],
        metadata=fields["metadata"],
    )


def integers(values: Iterable[int]) -> tuple[int, ...]:
    """A JSON list as a tuple."""
    return tuple(int(value) for value in values)
