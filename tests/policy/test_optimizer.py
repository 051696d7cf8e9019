"""Schedules: their values at every step against the closed form, and what does not fit the run."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.config.options.optimizer import OptimizerOptions
from miles.errors import PolicyError
from miles.policy.optimizer import build_optimizer, build_schedule

pytestmark = pytest.mark.unit


def rates(options, num_steps):
    """The learning rate of each optimiser step."""
    optimizer = build_optimizer([torch.nn.Parameter(torch.zeros(1))], options)
    schedule = build_schedule(optimizer, options, num_steps)
    seen = []
    for _ in range(num_steps + 1):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def closed_form(options, step, num_steps):
    """The rate at ``step``, from the options' own words."""
    if step < options.lr_warmup_iters:
        return options.lr * step / options.lr_warmup_iters
    done = (step - options.lr_warmup_iters) / (num_steps - options.lr_warmup_iters)
    share = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[options.lr_decay_style]
    low = options.min_lr if options.lr_decay_style != "constant" else 0.0
    return low + (options.lr - low) * share


@given(
    style=st.sampled_from(["constant", "linear", "cosine"]),
    num_steps=st.integers(2, 30),
    warmup=st.integers(0, 29),
    min_lr=st.sampled_from([0.0, 1e-4]),
)
@settings(max_examples=40, deadline=None)
def test_every_step_has_the_rate_of_the_closed_form(style, num_steps, warmup, min_lr):
    options = OptimizerOptions(lr=1e-2, min_lr=min_lr, lr_decay_style=style, lr_warmup_iters=min(warmup, num_steps - 1))
    expected = [closed_form(options, step, num_steps) for step in range(num_steps + 1)]
    assert rates(options, num_steps) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(PolicyError, match="lr_warmup_iters = 10, but the run has 10 optimiser steps"):
        rates(OptimizerOptions(lr_warmup_iters=10), 10)


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_a_decay_that_rises_is_refused(style):
    with pytest.raises(PolicyError, match="min_lr = 0.1 is not below lr = 0.01"):
        rates(OptimizerOptions(lr=0.01, min_lr=0.1, lr_decay_style=style), 10)


def test_frozen_parameters_stay_out():
    frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    kept = torch.nn.Parameter(torch.zeros(1))
    assert build_optimizer([frozen, kept], OptimizerOptions()).param_groups[0]["params"] == [kept]
