"""Checks of who makes the answers: the built-in generation, a generate function, or turns with an environment."""

from collections.abc import Iterator

from miles.config.view import View
from miles.errors import Problem


def continued_answers(view: View) -> Iterator[Problem]:
    """Only answers of one turn of the built-in generation can be gone on with."""
    for maker in ("custom_generate_function_path", "environment_path"):
        if view["partial_rollout"] and view[maker] is not None:
            why = f"cannot go on with the answers of {view.named(maker)}, which are made in one call"
            yield view.problem("partial_rollout", why, "Leave one of the two out")
            return


def judge_of_turns(view: View) -> Iterator[Problem]:
    """Built-in rewards read the whole answer, in which the environment's words stand too."""
    if view["environment_path"] is not None and view["rm_type"] is not None:
        why = f"judges the whole answer, the words of {view.named('environment_path')} included"
        yield view.problem("rm_type", why, "Pass --rm-type none and a reward of your own with --custom-rm-path")


def one_maker_of_answers(view: View) -> Iterator[Problem]:
    """A generate function makes the whole answer, the turns of an environment too."""
    if view["environment_path"] is not None and view["custom_generate_function_path"] is not None:
        why = f"has no effect while {view.named('custom_generate_function_path')} makes the answers"
        yield view.problem("environment_path", why, "Leave one of the two out")
