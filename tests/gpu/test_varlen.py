"""Rows end to end on a GPU: torch's kernel for segments against block masks.

pytest -m gpu tests/gpu/test_varlen.py
"""

import pytest
import torch

from miles.policy.process_group import group_of_one, leave
from miles.policy.trainer import Trainer
from miles.policy.varlen import KERNEL_TOLERANCE, attended_both_ways
from tests.policy.builders import PRESET, config, derived, random_rollout

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, and there is none")


def test_the_kernel_computes_what_segments_say() -> None:
    fast, plain = attended_both_ways(torch.device("cuda"))
    torch.testing.assert_close(fast, plain, rtol=KERNEL_TOLERANCE, atol=KERNEL_TOLERANCE)


def test_the_gradient_is_that_of_masked_rows() -> None:
    made, found = random_rollout(5), []
    options = config(PRESET, dtype="bfloat16")
    for packing in ("block-mask", "varlen"):
        sizes = derived(len(made.samples), device="cuda", packing=packing)
        built = Trainer(options, sizes, group_of_one(options, "cuda"))
        try:
            built.train_on(made, 0)
            found.append(torch.cat([p.grad.full_tensor().flatten() for p in built.model.parameters() if p.grad is not None]))
        finally:
            leave()
    masked, packed = found
    assert float((packed - masked).norm() / masked.norm()) <= 0.05
