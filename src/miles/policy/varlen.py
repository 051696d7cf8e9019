"""Attention over rows that stand end to end, for any transformers model that takes an attention of one's own.

    ForwardInput.segments ──model(…, cu_seq_lens_q=…)──► transformers' layers ──► ``segment_attention``

On a GPU in 16 bits one kernel computes all segments (torch's flash attention for variable lengths); elsewhere torch's scaled
dot product attention takes them one after the other. No padding is computed, and no mask larger than a segment exists.

Whether a model and a GPU are fit for that is tried. Where the user asked for it an unfit one is refused; where it is a default
(``--packing auto``) rows are masked instead, on all ranks alike.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import PolicyError
from miles.policy.collate import ForwardInput
from miles.policy.model import PROBE_TOLERANCE, DecoderModel
from miles.policy.ranks import Ranks
from miles.policy.segments import Segments

NAME = "miles_segments"
KERNEL_TOLERANCE = 2e-2  # bfloat16 has eight bits
FIRST_CAPABILITY = (8, 0)  # Ampere


def pack_as_chosen(models: Sequence[DecoderModel], config: AnyConfig, derived: Derived, ranks: Ranks) -> None:
    """Have the last of the models take rows that stand end to end, where that is how the run's rows stand.

    Where ``--packing auto`` says so and it is not fit for that on any rank, all of the models have their rows masked instead,
    on every rank, and the last one keeps a sentence that says why.

    Args:
        models: those before the last one take the same rows, and are packed already.
        config: of the run.
        derived: likewise.
        ranks: every one of them must call this, in the same order.

    Raises:
        PolicyError: it is not fit, and the user asked for ``--packing varlen``.
    """
    model = models[-1]
    if derived.packing != "varlen":
        return
    if config.optimizer.packing == "varlen":
        pack_end_to_end(model, derived.device)
        return
    why = _packed(model, derived.device)
    if int(ranks.sum(torch.tensor([float(bool(why))]))):
        for each in models:
            _mask_rows(each)
        model.why_not_packed = (
            f"--packing auto is block-mask here and not varlen: {why or 'a GPU of another rank is not fit for it.'}"
        )


def pack_end_to_end(model: DecoderModel, device: str) -> None:
    """Have the model take rows that stand end to end; to be called before it is spread over ranks.

    device: where forward passes run.

    Raises:
        PolicyError: the model's layers do not hand segments on, or this GPU does not compute them rightly.
    """
    if why := _packed(model, device):
        raise PolicyError(f"{why} Use --packing block-mask.")


def _packed(model: DecoderModel, device: str) -> str:
    """Why the model cannot, a sentence, and then it attends as before; empty where it takes such rows now."""
    try:
        if device == "cuda":
            refuse_unfit_gpu(torch.device(device))
        _attend_to_segments(model)
    except (PolicyError, RuntimeError, TypeError, ValueError) as error:  # layers that take no segments fail in their own way
        _mask_rows(model)
        name = type(model.causal_lm).__name__
        return str(error) if isinstance(error, PolicyError) else f"{name} does not take rows that stand end to end ({error})."
    model.packs_end_to_end = True
    return ""


def _mask_rows(model: DecoderModel) -> None:
    """Have the model attend as it was loaded to do."""
    model.causal_lm.set_attn_implementation(model.own_attention)
    model.packs_end_to_end = False


def _attend_to_segments(model: DecoderModel) -> None:
    """Give the model the attention, and try it on two rows.

    Raises:
        PolicyError: it does not compute them as it computes them apart.
    """
    from transformers import AttentionInterface

    apart = _probed(model, None)
    AttentionInterface.register(NAME, segment_attention)
    model.causal_lm.set_attn_implementation(NAME)
    ends = torch.tensor([0, 4, 8], dtype=torch.int32)
    together = _probed(model, Segments(ends, ends, None, 4, 4))
    if not torch.allclose(together, apart, rtol=PROBE_TOLERANCE, atol=PROBE_TOLERANCE):
        raise PolicyError(
            f"{type(model.causal_lm).__name__} does not compute rows that stand end to end as it computes them apart: its layers "
            "do more than attend, or do not hand on what is to be seen."
        )


def _probed(model: DecoderModel, segments: Segments | None) -> Tensor:
    """[8, hidden_size]: two rows of four tokens, end to end where there are segments."""
    ids, places = torch.tensor([[1, 2, 3, 4], [1, 5, 3, 2]]), torch.arange(4).repeat(2, 1)
    if segments is not None:
        ids, places = ids.reshape(1, -1), places.reshape(1, -1)
    none = torch.empty(0, dtype=torch.int64)
    with torch.no_grad():
        return model.hidden(ForwardInput(ids, places, None, none, none, none, none, segments).to(model.device))


def segment_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, sliding_window: int | None = None, **handed_on: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers' layers call it; without segments every row is one, and sees itself up to each query.

    Args:
        module: the attention layer.
        query: [rows, heads, width, head size]; rows that stand end to end are one.
        key: [rows, key heads, width, head size].
        value: likewise.
        attention_mask: None; segments say what is seen.
        dropout: of the attention weights, 0.
        scaling: of the scores; by default 1 / √(head size).
        sliding_window: tokens that a query sees, itself included; None for all before it.
        handed_on: the segments, and what other attentions read.

    Returns:
        [rows, width, heads, head size], and no weights.
    """
    rows, _, width, _ = query.shape
    ends = torch.arange(0, rows * width + 1, width, dtype=torch.int32, device=query.device)
    segments = Segments.handed_on(handed_on) or Segments(ends, ends, None, width, width)
    queries, keys, values = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    if segments.key_index is not None:
        keys, values = (tensor.index_select(0, segments.key_index) for tensor in (keys, values))
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    compute = in_one_kernel if query.is_cuda and is_half else one_by_one
    out = compute(module, queries, keys, values, segments, scaling, sliding_window)
    return out.reshape(rows, width, *out.shape[1:]), None


def in_one_kernel(
    module: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None, window: int | None
) -> Tensor:
    """[tokens, heads, head size], by torch's kernel: fewer queries than keys are the last ones, as ``Segments`` has it."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(  # type: ignore[return-value]  # a pair where more is asked for
        query, key, value, segments.query_ends, segments.key_ends, segments.longest_query, segments.longest_key,
        scale=scaling, window_size=(-1 if window is None else window - 1, 0), enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


def one_by_one(
    module: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None, window: int | None
) -> Tensor:
    """[tokens, heads, head size], segment by segment."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query_ends, key_ends = segments.query_ends.tolist(), segments.key_ends.tolist()
    outs = []
    for (start, end), (first, last) in zip(pairwise(query_ends), pairwise(key_ends), strict=True):
        parts = [part.transpose(0, 1)[None] for part in (query[start:end], key[first:last], value[first:last])]
        seen = seen_keys(end - start, last - first, window, query.device)
        outs.append(sdpa_attention_forward(module, *parts, seen, scaling=scaling)[0][0])
    return torch.cat(outs)


def seen_keys(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor | None:
    """[queries, keys], bool, what each query sees; None where that is what attention without a mask computes."""
    is_cut = window is not None and window < num_keys
    if not is_cut and num_queries in (1, num_keys):
        return None
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
    return seen.triu(num_keys - num_queries - window + 1) if is_cut and window is not None else seen


def refuse_unfit_gpu(device: torch.device) -> None:
    """Try the kernel.

    Raises:
        PolicyError: the GPU is too old for it, or computes otherwise than segment by segment.
    """
    found = torch.cuda.get_device_capability(device)
    if found < FIRST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise PolicyError(f"Attention over segments needs a GPU of the Ampere generation or newer, not {name}.")
    fast, plain = attended_both_ways(device)
    if not torch.allclose(fast, plain, rtol=KERNEL_TOLERANCE, atol=KERNEL_TOLERANCE):
        raise PolicyError(
            f"torch {torch.__version__} computes attention over segments otherwise on this GPU than segment by segment."
        )


def attended_both_ways(device: torch.device) -> tuple[Tensor, Tensor]:
    """[1, 7, 4, 64] twice, float32: seven queries that share keys, in bfloat16 (on GPUs the kernel) and in float32."""
    shared = Segments(
        torch.tensor([0, 4, 7], dtype=torch.int32), torch.tensor([0, 4, 11], dtype=torch.int32),
        torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]), 4, 7,
    ).to(device)  # fmt: skip
    chance = torch.Generator(device).manual_seed(0)
    made = [torch.randn(1, heads, 7, 64, generator=chance, device=device, dtype=torch.bfloat16) for heads in (4, 2, 2)]
    layer = torch.nn.Module()
    layer.num_key_value_groups = 2  # type: ignore[assignment]

    def attended(dtype: torch.dtype) -> Tensor:
        query, key, value = (tensor.to(dtype) for tensor in made)
        return segment_attention(layer, query, key, value, None, **shared.arguments())[0].float()

    return attended(torch.bfloat16), attended(torch.float32)
