"""LoRA: small trained matrices beside weights that stay as they are."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "LoRA"
NEEDS_RANK = {"lora_rank": ["given"]}


class LoraOptions(OptionSet):
    """Adapters of the policy (arXiv 2106.09685); without a rank the whole model is trained."""

    lora_rank: int | None = option(
        None,
        "Rank of LoRA adapters, which alone are trained. By default the whole model is trained.",
        panel=PANEL,
        ge=1,
        usual=False,
        on_resume="impossible",
    )
    lora_alpha: float | None = option(
        None,
        "Scale of the adapters: an adapter adds alpha / rank times its product. By default twice the rank.",
        panel=PANEL,
        gt=0,
        usual=False,
        counts_when=NEEDS_RANK,
        on_resume="impossible",
    )
    lora_targets: tuple[str, ...] = option(
        (),
        "Layers that get an adapter, by the ends of their names (`q_proj`). By default every linear layer but the head.",
        panel=PANEL,
        usual=False,
        counts_when=NEEDS_RANK,
        known_as=["target_modules"],
        on_resume="impossible",
    )


class PublishedLoraOptions(LoraOptions):
    """The same, and how adapters reach engines."""

    lora_publish: Literal["merged", "adapter"] = option(
        "merged",
        "What engines get: `merged` the whole weights with the adapters in them, `adapter` the adapters alone, to put beside the "
        "weights they started with.",
        panel=PANEL,
        usual=False,
        counts_when=NEEDS_RANK,
        on_resume="safe",
    )
