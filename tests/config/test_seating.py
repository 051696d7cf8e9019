"""Who sits where: everyone once, nobody on another's device, and the map shows them all."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.options.placement import Colocated, Disaggregated
from miles.config.seating import map_lines, seats_of

pytestmark = pytest.mark.unit


def seated(placement, num_engines, device="cuda", critics=0):
    ranks = placement.actor_num_nodes * placement.actor_num_gpus_per_node
    derived = SimpleNamespace(
        device=device, num_ranks=ranks, num_critic_ranks=critics, num_engines=num_engines, num_eval_engines=0, engine="sglang"
    )
    return seats_of(SimpleNamespace(derived=derived, config=SimpleNamespace(placement=placement)))


@given(st.integers(1, 3), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]), st.integers(1, 9), st.integers(0, 9))
def test_disaggregated_processes_share_no_device(nodes, of_node, size, engines, critics):
    placement = Disaggregated(
        actor_num_nodes=nodes, actor_num_gpus_per_node=of_node, rollout_num_gpus_per_engine=size, rollout_num_gpus=size * engines
    )
    seats = seated(placement, engines, critics=critics)
    places = [(seat.node, device) for seat in seats for device in seat.devices]
    assert len(places) == len(set(places)) == nodes * of_node + critics + size * engines
    assert all(device < 8 for _, device in places)
    assert [seat.name for seat in seats] == [
        *(f"rank {n}" for n in range(nodes * of_node)),
        *(f"critic {n}" for n in range(critics)),
        *(f"engine {n}" for n in range(engines)),
    ]
    shown = "\n".join(map_lines(seats))
    assert all(f"{seat.name} " in shown or f"{seat.name}]" in shown for seat in seats)


@given(st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_colocated_engines_cover_the_policy_s_devices_and_nobody_the_critic_s(nodes, of_node, size, critics):
    size = min(size, of_node)
    placement = Colocated(actor_num_nodes=nodes, actor_num_gpus_per_node=of_node, rollout_num_gpus_per_engine=size)
    seats = seated(placement, nodes * of_node // size, critics=critics)
    of = {
        kind: {(seat.node, device) for seat in seats if seat.name.startswith(kind) for device in seat.devices}
        for kind in ("rank", "engine", "critic")
    }
    assert of["rank"] == of["engine"]
    assert len(of["critic"]) == critics and not of["critic"] & of["rank"]


def test_the_map():
    placement = Disaggregated(actor_num_gpus_per_node=6, rollout_num_gpus=2)
    assert list(map_lines(seated(placement, 2))) == [
        "node 0  [GPU 0 rank 0] [GPU 1 rank 1] [GPU 2 rank 2] [GPU 3 rank 3]",
        "        [GPU 4 rank 4] [GPU 5 rank 5] [GPU 6 engine 0 sglang] [GPU 7 engine 1 sglang]",
    ]
    colocated = Colocated(actor_num_gpus_per_node=1)
    assert list(map_lines(seated(colocated, 1))) == ["node 0  [GPU 0 rank 0 + engine 0 sglang]"]
    on_cpu = seated(Disaggregated(), 1, device="cpu", critics=1)
    assert list(map_lines(on_cpu)) == ["node 0  [CPU rank 0] [CPU critic 0] [CPU engine 0 sglang]"]
    wide = seated(Disaggregated(rollout_num_gpus=4, rollout_num_gpus_per_engine=4), 1)
    assert [seat.device for seat in wide] == ["GPU 0 on node 0", "GPUs 1–4 on node 0, sglang"]
