"""How answers are sampled for training."""

from miles.config.options.base import OptionSet, option

PANEL = "Sampling"


class SamplingOptions(OptionSet):
    """Sampling parameters of training rollouts."""

    rollout_temperature: float = option(
        1.0,
        "Sampling temperature; log-probs are taken after it.",
        panel=PANEL,
        gt=0,
        known_as=["temperature"],
        on_resume="course",
    )
    rollout_top_p: float = option(
        1.0, "Keep the smallest set of tokens with this probability.", panel=PANEL, gt=0, le=1, on_resume="course"
    )
    rollout_top_k: int = option(-1, "Keep the k most probable tokens; -1 keeps all.", panel=PANEL, ge=-1, on_resume="course")
    rollout_stop: tuple[str, ...] = option((), "Strings that end an answer.", panel=PANEL, usual=False, on_resume="course")
    rollout_stop_token_ids: tuple[int, ...] = option(
        (), "Token ids that end an answer, beside the model's own.", panel=PANEL, usual=False, on_resume="course"
    )
    rollout_seed: int = option(42, "Seed of prompt order and sampling.", panel=PANEL, ge=0, on_resume="course")
