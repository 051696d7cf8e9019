"""What travels to an engine arrives as it was, and nothing but tensors comes out of a payload."""

import base64
import pickle
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from miles.engines.transfer.bucket import empty_bucket, filled_bucket
from miles.engines.transfer.checksum import checksum, overall_checksum, parts_of, possible_checksums
from miles.engines.transfer.group import UpdateGroup, listen_for_group
from miles.engines.transfer.payload import pack_tensors, shared_by_name, unpack_tensors
from miles.engines.transfer.specs import ELEMENT_BYTES, TensorSpec

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
TYPES = ("float32", "bfloat16", "float64", "int8", "float16")
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = st.lists(st.tuples(st.sampled_from(TYPES), SHAPES), min_size=1, max_size=6)


def made(kinds: list[tuple[str, tuple[int, ...]]]) -> dict[str, torch.Tensor]:
    return {
        f"t{place}": torch.arange(torch.Size(shape).numel()).reshape(shape).to(getattr(torch, dtype)) + place
        for place, (dtype, shape) in enumerate(kinds)
    }


@given(TENSORS)
def test_a_bucket_gives_back_what_was_put_in(kinds: list[tuple[str, tuple[int, ...]]]) -> None:
    tensors = made(kinds)
    bucket = filled_bucket(tensors.items())
    assert bucket.num_bytes == sum(tensor.nbytes for tensor in tensors.values()) == sum(s.num_bytes for s in bucket.specs)
    received = empty_bucket(bucket.specs)
    received.flat.copy_(bucket.flat)
    arrived = dict(received.tensors())
    assert arrived.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert arrived[name].dtype == tensor.dtype and torch.equal(arrived[name], tensor)


def test_element_sizes_are_torchs() -> None:
    assert {name: getattr(torch, name).itemsize for name in ELEMENT_BYTES} == ELEMENT_BYTES


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "at least one"),
        ([TensorSpec("a", "float32", (-1,))], "has shape"),
        ([TensorSpec("a", "dtype", (1,))], "has dtype 'dtype'"),
        ([TensorSpec("a", "int8", (3,)), TensorSpec("b", "float32", (1,))], "b would begin at byte 3"),
    ],
)
def test_buckets_that_cannot_be_are_refused(specs: list[TensorSpec], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        empty_bucket(specs)


def test_a_payload_is_the_memory_itself() -> None:
    with shared_by_name():
        bucket = filled_bucket([("a", torch.arange(3.0)), ("b", torch.tensor([7], dtype=torch.bfloat16))], shared=True)
    mapped = dict(unpack_tensors(pack_tensors(bucket.tensors())))
    bucket.tensors()[0][1][0] = 5.0
    assert mapped["a"].tolist() == [5.0, 1.0, 2.0]
    assert mapped["b"].tolist() == [7.0] and mapped["b"].dtype == torch.bfloat16


class Opens:
    """A pickle that runs a function of the standard library."""

    def __reduce__(self) -> Any:
        return print, ("read",)


@pytest.mark.parametrize("evil", [Opens(), [("a", Opens())], [("a", torch.nn.Linear(1, 1))]])
def test_a_payload_builds_nothing_but_tensors(evil: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is no part of a tensor"):
        unpack_tensors(base64.b64encode(pickle.dumps(evil)).decode())
    assert capsys.readouterr().out == ""


@given(st.binary(max_size=40))
def test_nonsense_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="the payload"):
        unpack_tensors(base64.b64encode(content).decode())


def test_a_list_of_something_else_is_no_payload() -> None:
    with pytest.raises(ValueError, match="no list of names and tensors"):
        unpack_tensors(base64.b64encode(pickle.dumps([1, 2])).decode())


def test_checksums_tell_one_bit() -> None:
    tensor = torch.zeros(3, 2)
    other = tensor.clone()
    other[2, 1] = -0.0
    assert checksum(tensor) == checksum(tensor.clone()) != checksum(other)
    assert checksum(tensor.T) == checksum(tensor.T.contiguous())
    assert (
        overall_checksum({"a": "1", "b": "2"}) == overall_checksum({"b": "2", "a": "1"}) != overall_checksum({"a": "2", "b": "1"})
    )


def test_joined_tensors_are_made_of_the_checkpoints() -> None:
    assert parts_of("model.layers.0.self_attn.qkv_proj.bias") == tuple(
        f"model.layers.0.self_attn.{part}_proj.bias" for part in "qkv"
    )
    assert parts_of("model.layers.3.mlp.gate_up_proj.weight")[1] == "model.layers.3.mlp.up_proj.weight"
    assert parts_of("model.norm.weight") == ("model.norm.weight",)
    one, two = torch.ones(2, 3), torch.zeros(1, 3)
    assert possible_checksums("x.qkv_proj.weight", [one, two]) == [checksum(torch.cat([one, two]))]
    padded = torch.cat([one, torch.zeros(62, 3)])
    assert possible_checksums("model.embed_tokens.weight", [one]) == [checksum(one), checksum(padded)]


def test_whoever_joins_with_torchs_own_helper_is_met() -> None:
    """SGLang calls this private function of torch, so both ends must agree on where the ranks find each other."""
    from torch import distributed as dist
    from torch.distributed import distributed_c10d as c10d

    store, wait, sent = listen_for_group("127.0.0.1", 2, 10.0), timedelta(seconds=10), torch.arange(4, dtype=torch.uint8)
    received = torch.zeros(4, dtype=torch.uint8)

    def join_as_sglang() -> None:
        place, rank, size = next(c10d.rendezvous(f"tcp://127.0.0.1:{store.port}", 1, 2, timeout=wait))
        backend, prefix = c10d.Backend("gloo"), c10d.PrefixStore("name", place)
        group, _ = c10d._new_process_group_helper(size, rank, [], backend, prefix, group_name="name", timeout=wait)
        c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
        group.broadcast(received, 0).wait()
        dist.destroy_process_group(group)

    engine = threading.Thread(target=join_as_sglang)
    engine.start()
    ours = UpdateGroup("name", store, 0, 2, "gloo", 10.0)
    ours.broadcast(sent).wait()
    engine.join(10)
    ours.leave()
    assert torch.equal(received, sent)
