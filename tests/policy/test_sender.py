"""The sending end: what is staged is one version, bucket by bucket, and stays that whatever the policy learns."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from miles.engines.transfer.payload import unpack_tensors
from miles.errors import PolicyError
from miles.policy.export import planned_buckets, untied_weights
from miles.policy.ranks import OneRank
from miles.policy.sender import WeightSender

from .builders import causal_lm

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
MODEL: Any = causal_lm()


@given(st.integers(1, 2**22))
def test_buckets_hold_every_weight_once_and_no_more_than_asked(size: int) -> None:
    weights, plan = untied_weights(MODEL), planned_buckets(MODEL, size)
    assert [name for names in plan for name in names] == list(weights)
    for names in plan:
        assert len(names) == 1 or sum(weights[name].nbytes for name in names) <= size
    for one, following in pairwise(plan):  # no bucket could have taken the next tensor as well
        assert sum(weights[name].nbytes for name in [*one, following[0]]) > size


def test_staged_weights_stay_what_they_were() -> None:
    model: Any = causal_lm()
    sender, name = WeightSender(model, OneRank()), "model.norm.weight"
    specs = sender.stage(1, 1 << 30, shared=True, on_device=False)
    before = model.state_dict()[name].clone()
    with torch.no_grad():
        model.state_dict()[name].add_(1)
    sender.stage(2, 1 << 30, shared=True, on_device=False)
    for version, value in ((1, before), (2, before + 1)):
        (payload,) = sender.payloads(version, 0, 1)
        named = dict(unpack_tensors(payload))
        assert torch.equal(named[name], value)
        assert named.keys() == {spec.name for spec in specs[0]} == untied_weights(model).keys()
    sender.keep_only(2)
    assert list(sender._staged) == [2]


def test_what_travels_has_the_engines_number_type() -> None:
    sender = WeightSender(MODEL, OneRank(), "bfloat16")
    (specs,) = sender.stage(1, 1 << 30, shared=False, on_device=False)
    assert {spec.dtype for spec in specs} == {"bfloat16"}
    assert sender._staged[1][0].num_bytes * 2 == sum(tensor.nbytes for tensor in untied_weights(MODEL).values())


def test_full_shared_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(PolicyError, match=r"MiB of shared memory and 0 MiB are free.*transfer-mode broadcast"):
        WeightSender(MODEL, OneRank()).stage(1, 1 << 30, shared=True, on_device=False)


def test_a_group_that_nobody_joins_is_given_up() -> None:
    sender = WeightSender(MODEL, OneRank())
    assert sender.listen("lonely", "127.0.0.1", 2, 0.2) > 0
    with pytest.raises(PolicyError, match="did not join the group lonely"):
        sender.join("lonely", 2, "gloo", 0.2)


def test_checksums_of_unknown_tensors_are_none() -> None:
    found = WeightSender(MODEL, OneRank()).checksums(["model.norm.weight", "model.rotary.weight"])
    assert len(found["model.norm.weight"]) == 1
    assert found["model.rotary.weight"] == []


def test_names_that_differ_on_disk_need_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODEL, "_weight_conversions", [object()], raising=False)
    with pytest.raises(PolicyError, match="have other names on disk: use --update-weight-transfer-mode disk"):
        WeightSender(MODEL, OneRank()).stage(1, 1, shared=False, on_device=False)
