"""Supervised learning: the loss and gradient are those of a plain cross-entropy over the answers, however it is cut."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.policy.examples import Example, batch_of
from miles.policy.trainer import Trainer
from tests.policy.builders import VOCAB, causal_lm, config, derived, policy_model

pytestmark = pytest.mark.unit
LOSS = "miles.policy.losses:answer_loss"
TOKENS = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=6)


@st.composite
def examples(draw):
    """One to four examples of mixed lengths, masks with holes, at least one trained token each."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        prompt, rest = draw(TOKENS), draw(TOKENS)
        trained = draw(st.lists(st.booleans(), min_size=len(rest), max_size=len(rest)).filter(any))
        made.append(Example(np.array(prompt), np.array(rest), np.array(trained)))
    return made


def trainer(count, **sizes):
    return Trainer(config(custom_loss_function_path=LOSS, lr=1e-30), derived(count, **sizes), model=policy_model("llama"))


def reference(made):
    """Mean over all trained tokens of −log softmax, and its gradient, one example at a time in float64."""
    model = causal_lm("llama").double()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for one in made:
        ids = torch.tensor(np.concatenate((one.prompt_ids, one.response_ids)))
        logprobs = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
        for place, trained in enumerate(one.trained.tolist(), start=len(one.prompt_ids)):
            if trained:
                total, count = total - logprobs[place - 1, ids[place]], count + 1
    mean = total / count
    mean.backward()
    return mean.item(), [parameter.grad for parameter in model.parameters()]


@settings(max_examples=15, deadline=None)
@given(examples())
def test_it_is_the_cross_entropy_of_the_answers(made):
    loss, gradient = reference(made)
    for sizes in ({}, {"micro_batch_size": 1}):
        built = trainer(len(made), **sizes)
        assert built.mean_loss(batch_of(made, 0)) == pytest.approx(loss, rel=1e-10)
        assert built.train_on_batch(batch_of(made, 0)).metrics["train/loss"] == pytest.approx(loss, rel=1e-10)
        for parameter, expected in zip(built.model.parameters(), gradient, strict=True):
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-8, atol=1e-12)
