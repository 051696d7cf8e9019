"""The model being trained: any HF causal LM, asked for the log-probs of given tokens.

The head runs only on hidden states that predict a trained token, so the logits of prompts are never made.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from miles.errors import PolicyError
from miles.policy.collate import ForwardInput, visible_keys
from miles.policy.packing import Layout
from miles.policy.vocab_chunks import at_least_float32, chunked_scores

PROBE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class TokenScores:
    """[tokens] each, at least float32: log-probs after temperature; the distribution's entropy in nats where it was asked for."""

    logprobs: Tensor
    entropy: Tensor | None


class DecoderModel(nn.Module):
    """An HF causal LM's decoder; what is made of its hidden states is for others to say.

    runs_on: where the forward pass runs, if the weights live elsewhere between two of them.
    shares_prompts: whether rows may hold several answers after one prompt (``collate``); measured, not assumed.
    packs_end_to_end: whether rows stand end to end, see ``varlen``. why_not_packed: what to tell where they were to and do not.
    own_attention: transformers' name of the attention that it was loaded with.
    """

    def __init__(self, causal_lm: Any) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.runs_on: torch.device | None = None
        self.packs_end_to_end, self.why_not_packed = False, ""
        self.own_attention: str = causal_lm.config._attn_implementation
        silence_dropout(causal_lm)
        self.shares_prompts = attends_everywhere(causal_lm.config) and _sharing_agrees(self)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return int(self.causal_lm.config.get_text_config().hidden_size)

    @property
    def layout(self) -> Layout:
        """How its rows stand."""
        return Layout(self.hidden_size, self.shares_prompts, self.packs_end_to_end)

    @property
    def device(self) -> torch.device:
        """Where the forward pass runs."""
        return self.runs_on or next(self.parameters()).device

    def hidden(self, batch: ForwardInput) -> Tensor:
        """[rows × width, hidden_size]: the last hidden states."""
        segments = {} if batch.segments is None else batch.segments.arguments()
        states: Tensor = self.causal_lm.get_decoder()(
            input_ids=batch.input_ids,
            attention_mask=batch.visible,
            position_ids=batch.position_ids,
            use_cache=False,
            **segments,
        ).last_hidden_state
        return states.flatten(0, 1)


class PolicyModel(DecoderModel):
    """An HF causal LM as decoder and head.

    vocab_chunk_size: tokens of the vocabulary whose logits exist at once; None for all.
    """

    def __init__(self, causal_lm: Any) -> None:
        """Wrap a model.

        Raises:
            PolicyError: its logits are not ``head(decoder(ids))``.
        """
        super().__init__(causal_lm)
        self.vocab_chunk_size: int | None = None
        refuse_other_heads(self)

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return int(self.causal_lm.get_output_embeddings().weight.shape[0])

    def forward(self, batch: ForwardInput, temperature: float, with_entropy: bool) -> TokenScores:
        """Scores of the batch's trained tokens, as the engine gives them: softmax of logits / temperature."""
        states, head = self.hidden(batch)[batch.source], self.causal_lm.get_output_embeddings()
        if self.vocab_chunk_size is not None:
            logprobs, entropy = chunked_scores(states, head.weight, batch.target, temperature, self.vocab_chunk_size)
            return TokenScores(logprobs, entropy if with_entropy else None)
        logits = head(states)
        logits = logits.to(at_least_float32(logits.dtype))
        scaled = logits if temperature == 1.0 else logits / temperature
        if not with_entropy:
            return TokenScores(-F.cross_entropy(scaled, batch.target, reduction="none"), None)
        table = torch.log_softmax(scaled, dim=-1)
        return TokenScores(-F.nll_loss(table, batch.target, reduction="none"), -(table.exp() * table).sum(dim=-1))


def chunk_vocabulary(model: PolicyModel, size: int | None) -> None:
    """Have the model score tokens from chunks of the vocabulary.

    Raises:
        PolicyError: its head is more than a matrix.
    """
    head = model.causal_lm.get_output_embeddings()
    if size is not None and (not isinstance(head, nn.Linear) or head.bias is not None):
        raise PolicyError("the model's head is more than a matrix and cannot be cut into chunks. Leave --vocab-chunk-size out.")
    model.vocab_chunk_size = size


def load_model(folder: Path, *, device: str, gradient_checkpointing: bool) -> PolicyModel:
    """The causal LM in an HF folder, in float32, ready to train.

    Raises:
        PolicyError: no folder, no readable model in it, or one that cannot be trained here.
    """
    causal_lm = read_causal_lm(folder).to(device)
    model = PolicyModel(causal_lm)
    if gradient_checkpointing:
        causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def read_causal_lm(folder: Path) -> Any:
    """The transformers model in a folder, in float32 on the CPU; nothing is fetched from the network.

    Raises:
        PolicyError: there is no readable causal LM, or its file lacks weights.
    """
    if not (folder / "config.json").is_file():
        raise PolicyError(
            f"{folder} holds no config.json. --hf-checkpoint must name an HF folder (config, tokenizer, safetensors)."
        )
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        causal_lm, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise PolicyError(f"the model in {folder} cannot be loaded: {error}. --hf-checkpoint must name a causal LM.") from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise PolicyError(f"the weights in {folder} lack {missing}. Give a complete HF folder as --hf-checkpoint.")
    return causal_lm


def silence_dropout(causal_lm: nn.Module) -> None:
    """Put the model into training mode without dropout: π/old must be 1 on the first step, as the engine samples without it."""
    causal_lm.train()
    for module in causal_lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if getattr(module, "attention_dropout", 0.0):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def attends_everywhere(config: Any) -> bool:
    """Whether every layer attends to the whole context, by dense attention that takes a mask of our own."""
    text = config.get_text_config()
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    dense = getattr(text, "_attn_implementation", None) in ("sdpa", "eager")
    return layers == {"full_attention"} and (window is None or getattr(text, "layer_types", None) is not None) and dense


def refuse_other_heads(model: PolicyModel) -> None:
    """Refuse a model that does more to its logits than the head (scaling, soft caps); compared on three tokens."""
    batch = _probe(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]]), None).to(model.device)
    with torch.no_grad():
        ours = model.causal_lm.get_output_embeddings()(model.hidden(batch))
        whole = model.causal_lm(input_ids=batch.input_ids, use_cache=False).logits[0]
    if not torch.allclose(ours, whole, rtol=PROBE_TOLERANCE, atol=PROBE_TOLERANCE):
        kind = type(model.causal_lm).__name__
        raise PolicyError(
            f"{kind} computes its logits by more than a head on the last hidden states. Train a model that does not."
        )


def _sharing_agrees(model: DecoderModel) -> bool:
    """Whether two answers after one prompt get the hidden states that each gets alone; tried on six tokens."""
    row = torch.tensor([[1, 2, 3, 4, 3, 5]])  # prompt 1 2, answers 3 4 and 3 5
    place = torch.tensor([[0, 1, 2, 3, 2, 3]])
    shared = _probe(row, place, visible_keys(torch.tensor([[0, 0, 1, 1, 2, 2]])))
    alone = _probe(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]), torch.arange(4).repeat(2, 1), None)
    with torch.no_grad():
        together, apart = model.hidden(shared.to(model.device)), model.hidden(alone.to(model.device))
    return torch.allclose(together[2:], apart[[2, 3, 6, 7]], rtol=PROBE_TOLERANCE, atol=PROBE_TOLERANCE)


def _probe(ids: Tensor, positions: Tensor, visible: Tensor | None) -> ForwardInput:
    """A forward pass that predicts nothing."""
    none = torch.empty(0, dtype=torch.int64)
    return ForwardInput(ids, positions, visible, none, none, none, none)
