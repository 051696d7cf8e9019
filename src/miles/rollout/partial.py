"""Answers that were stopped before their end and are continued later (``--partial-rollout``): joined token by token.

A group whose samples are not all finished and scored is *unfinished*. What was sampled keeps its tokens, log-probs and weight
versions; the engine is asked for the rest with prompt and earlier tokens as its input. A stop string that would begin in the
earlier tokens and end in the later ones is not seen by the engine.
"""

from dataclasses import replace

from miles.types import Group, Sample, SampleStatus, VersionSpan


def is_finished(group: Group) -> bool:
    """Whether every sample has ended and was scored."""
    return all(sample.reward is not None or sample.status is SampleStatus.FAILED for sample in group.samples)


def is_whole(sample: Sample) -> bool:
    """Whether nothing is left to sample."""
    return sample.status is not SampleStatus.ABORTED


def joined(earlier: Sample, later: Sample) -> Sample:
    """The answer that ``earlier`` began and ``later`` went on with; how it ended, text and metadata are the later's."""
    start = len(earlier.response_ids)
    spans = list(earlier.versions)
    for span in later.versions:
        begin = start + span.start
        if spans and spans[-1].version == span.version:
            begin = spans.pop().start
        spans.append(VersionSpan(span.version, begin, start + span.end))
    return replace(
        later,
        prompt_ids=earlier.prompt_ids,
        response_ids=earlier.response_ids + later.response_ids,
        logprobs=earlier.logprobs + later.logprobs,
        loss_mask=earlier.loss_mask + later.loss_mask,
        versions=tuple(spans),
    )
