"""An environment of your own: a wrong answer is told to be wrong, and the model tries again.

    miles train --preset reverse --environment-path try_again:respond --max-turns 3 \
        --custom-rm-path try_again:reward --rm-type none --rollout-max-response-len 48

What the environment says stands in the sample and is not trained on. Here it repeats the prompt, since the toy model knows
nothing else; with `--apply-chat-template` a reply is a message.
"""

from miles.types import Prompt, Sample


async def respond(prompt: Prompt, turns: tuple[str, ...]) -> str | None:
    """None once the last turn is right; otherwise the question again."""
    return None if turns[-1].strip() == prompt.label else prompt.text


def reward(sample: Sample, prompt: Prompt) -> float:
    """1 for the right answer at once, less for every turn more."""
    turns = sample.text.split(prompt.text.replace("<bos>", ""))
    return 1.0 / len(turns) if turns[-1].strip() == prompt.label else 0.0
