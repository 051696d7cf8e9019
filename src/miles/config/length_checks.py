"""Lengths in tokens against what the model was made for."""

from collections.abc import Iterator

from miles.config.checks import Check
from miles.config.derived import NO_LIMIT
from miles.config.facts import Facts
from miles.config.view import View
from miles.errors import Problem


def length_checks(facts: Facts) -> tuple[Check, ...]:
    """The checks that compare lengths with the model's own limit."""

    def model_limit(view: View) -> Iterator[Problem]:
        limit, option, answer = facts.model_context_len, view["rollout_max_context_len"], view["rollout_max_response_len"]
        if limit is None and option is None:
            yield view.problem("rollout_max_context_len", NO_LIMIT, "Pass --rollout-max-context-len")
        elif limit is not None and option is not None and option > limit:
            why = f"is above the model's own limit of {limit} tokens"
            yield view.problem("rollout_max_context_len", why, f"Give --rollout-max-context-len at most {limit}")
        elif limit is not None and option is None and answer >= limit:
            why = f"leaves no room for a prompt in the model's {limit} tokens"
            yield view.problem("rollout_max_response_len", why, f"Give --rollout-max-response-len less than {limit}")

    def prompt_limit(view: View) -> Iterator[Problem]:
        limit, prompt, answer = facts.model_context_len, view["rollout_max_prompt_len"], view["rollout_max_response_len"]
        if view["rollout_max_context_len"] is None and limit and prompt is not None and prompt + answer > limit:
            why = f"and {view.named('rollout_max_response_len')} make {prompt + answer}, more than the model's {limit} tokens"
            yield view.problem("rollout_max_prompt_len", why, "Lower --rollout-max-prompt-len or --rollout-max-response-len")

    def eval_limit(view: View) -> Iterator[Problem]:
        limit, answer = view["rollout_max_context_len"] or facts.model_context_len, view["eval_max_response_len"]
        if limit and answer is not None and answer >= limit:
            why = f"leaves no room for a prompt in {limit} tokens"
            yield view.problem("eval_max_response_len", why, f"Give --eval-max-response-len less than {limit}")

    return (
        Check(model_limit, ("rollout_max_context_len", "rollout_max_response_len")),
        Check(prompt_limit, ("rollout_max_context_len", "rollout_max_prompt_len", "rollout_max_response_len")),
        Check(eval_limit, ("rollout_max_context_len", "eval_max_response_len")),
    )
