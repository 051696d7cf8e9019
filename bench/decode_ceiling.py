"""The embedded engine through HTTP beside a hand-written decode loop: the same model, one thread, 128 requests at once.

    python bench/decode_ceiling.py [--concurrent 128] [--new-tokens 32] [--repeats 5]

The loop is what one would write for this one architecture by hand: fused projections, a cache allocated once, no HTTP,
no requests that join or leave. It is the ceiling; alternating repeats, medians, ratios inside each repeat.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from miles.engines.client import EngineClient
from miles.engines.embedded.options import EmbeddedOptions
from miles.engines.embedded.server import EmbeddedServer
from miles.engines.wire import GenerateRequest, SamplingParams

TOKENIZER = Path(__file__).parents[1] / "src/miles/presets/reverse/model"
PROMPT_TOKENS = 12


def make_model() -> Qwen3ForCausalLM:
    """Four layers of width 128."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=100, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


class HandWritten:
    """Qwen3 decoding by hand: equal prompt lengths, so that no mask is needed at all."""

    def __init__(self, model: Qwen3ForCausalLM, batch: int, length: int) -> None:
        config, layers = model.config, model.model.layers
        self.config, self.model = config, model
        self.qkv = [torch.cat([b.self_attn.q_proj.weight, b.self_attn.k_proj.weight, b.self_attn.v_proj.weight]) for b in layers]
        self.gate_up = [torch.cat([block.mlp.gate_proj.weight, block.mlp.up_proj.weight]) for block in layers]
        shape = (len(layers), batch, config.num_key_value_heads, length, config.head_dim)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)
        positions = torch.arange(length)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1), positions)
        self.cos, self.sin = cos[0], sin[0]

    def layer(self, number: int, hidden: Tensor, start: int) -> Tensor:
        """One block on ``hidden`` [batch, tokens, width], whose first token stands at ``start``."""
        block, config = self.model.model.layers[number], self.config
        batch, tokens, width = hidden.shape
        heads, kv_heads, size, eps = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.rms_norm_eps
        normed = functional.rms_norm(hidden, (width,), block.input_layernorm.weight, eps)
        query, key, value = functional.linear(normed, self.qkv[number]).split(
            [heads * size, kv_heads * size, kv_heads * size], -1
        )
        query = self.rotate(
            functional.rms_norm(query.view(batch, tokens, heads, size), (size,), block.self_attn.q_norm.weight, eps), start
        )
        key = self.rotate(
            functional.rms_norm(key.view(batch, tokens, kv_heads, size), (size,), block.self_attn.k_norm.weight, eps), start
        )
        end = start + tokens
        self.keys[number, :, :, start:end] = key.transpose(1, 2)
        self.values[number, :, :, start:end] = value.view(batch, tokens, kv_heads, size).transpose(1, 2)
        keys, values = self.keys[number, :, :, :end], self.values[number, :, :, :end]
        if tokens == 1:
            grouped = query.view(batch, kv_heads, heads // kv_heads, size)
            mixed = functional.scaled_dot_product_attention(grouped, keys, values).reshape(batch, 1, heads * size)
        else:
            mixed = functional.scaled_dot_product_attention(query.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True)
            mixed = mixed.transpose(1, 2).reshape(batch, tokens, heads * size)
        hidden = hidden + functional.linear(mixed, block.self_attn.o_proj.weight)
        normed = functional.rms_norm(hidden, (width,), block.post_attention_layernorm.weight, eps)
        gate, up = functional.linear(normed, self.gate_up[number]).chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate) * up, block.mlp.down_proj.weight)

    def rotate(self, states: Tensor, start: int) -> Tensor:
        """Rotary position embedding of [batch, tokens, heads, size]."""
        tokens = states.shape[1]
        cos, sin = self.cos[start : start + tokens, None], self.sin[start : start + tokens, None]
        first, second = states.chunk(2, -1)
        return states * cos + torch.cat([-second, first], -1) * sin

    @torch.no_grad()
    def generate(self, prompts: Tensor, new_tokens: int) -> Tensor:
        """Sampled tokens [batch, new_tokens] and their log-probs are computed, as an engine has to."""
        config, hidden, start = self.config, functional.embedding(prompts, self.model.model.embed_tokens.weight), 0
        sampled = []
        for _ in range(new_tokens):
            for number in range(len(self.qkv)):
                hidden = self.layer(number, hidden, start)
            start += hidden.shape[1]
            last = functional.rms_norm(hidden[:, -1], (config.hidden_size,), self.model.model.norm.weight, config.rms_norm_eps)
            logprobs = functional.linear(last, self.model.lm_head.weight).log_softmax(-1)
            token = (logprobs - torch.empty_like(logprobs).exponential_().log()).argmax(-1)
            logprobs.gather(1, token[:, None])
            sampled.append(token)
            hidden = functional.embedding(token[:, None], self.model.model.embed_tokens.weight)
        return torch.stack(sampled, 1)


async def engine_seconds(client: EngineClient, prompts: Tensor, new_tokens: int, together: bool) -> float:
    """How long the engine takes for all prompts, as one HTTP request or one for each."""
    sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [GenerateRequest(str(number), tuple(row), sampling) for number, row in enumerate(prompts.tolist())]
    began = time.perf_counter()
    groups = [requests] if together else [[request] for request in requests]
    answers = [answer for group in await asyncio.gather(*map(client.generate, groups)) for answer in group]
    seconds = time.perf_counter() - began
    if any(len(answer.output_ids) != new_tokens for answer in answers):
        raise SystemExit("the engine left tokens out")
    return seconds


async def measure(folder: str, model: Qwen3ForCausalLM, arguments: argparse.Namespace) -> None:
    """Alternate loop and engine, print medians."""
    concurrent, new_tokens = arguments.concurrent, arguments.new_tokens
    prompts = torch.randint(4, 100, (concurrent, PROMPT_TOKENS))
    loop = HandWritten(model, concurrent, PROMPT_TOKENS + new_tokens)
    server = EmbeddedServer(EmbeddedOptions(folder, num_slots=concurrent, context_len=PROMPT_TOKENS + new_tokens + 4))
    address = await server.start()
    times: dict[str, list[float]] = {"hand-written loop": [], "engine, one HTTP request": [], "engine, a request each": []}
    async with EngineClient(address) as client:
        for repeat in range(arguments.repeats + 1):
            began = time.perf_counter()
            loop.generate(prompts, new_tokens)
            row = [time.perf_counter() - began]
            row += [await engine_seconds(client, prompts, new_tokens, together) for together in (True, False)]
            if repeat:  # the first round warms up
                for name, seconds in zip(times, row, strict=True):
                    times[name].append(seconds)
    await server.stop()
    print(f"{concurrent} concurrent, {new_tokens} new tokens, one thread\n\n| | tokens/s | of the loop |\n|---|---|---|")
    for name, seconds in times.items():
        share = statistics.median(base / one for base, one in zip(times["hand-written loop"], seconds, strict=True))
        print(f"| {name} | {concurrent * new_tokens / statistics.median(seconds):,.0f} | {share:.2f} |")


def main() -> None:
    """Make the model, serve it, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrent", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder)
        asyncio.run(measure(folder, model, arguments))


if __name__ == "__main__":
    main()
