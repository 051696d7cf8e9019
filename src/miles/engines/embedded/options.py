"""How an embedded engine is started."""

from dataclasses import dataclass
from typing import Literal

DEFAULT_VERSION = "default"  # what SGLang calls weights that nobody versioned
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """Options of one embedded engine.

    model_path: Hugging Face model folder.
    dtype: number type of weights, activations and KV cache; log-probs are float32 in either case.
    num_slots: requests that are decoded together; the KV cache is allocated for all of them.
    context_len: longest prompt plus answer in tokens; None takes what the model was made for.
    deterministic: an answer depends on nothing but prompt, parameters, seed and weights, at the price of fixed shapes. A
        retraction still changes log-probs by rounding (about 3e-7): prefill and decode are different sums.
    seed: of the seeds given to requests that bring none; None draws it from the operating system.
    torch_threads: threads of one matrix product.
    host, port: where to listen; port 0 lets the system choose.
    weight_version: what the weights at the start are called.
    """

    model_path: str
    dtype: Dtype = "float32"
    num_slots: int = 128
    context_len: int | None = None
    deterministic: bool = False
    seed: int | None = None
    torch_threads: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    weight_version: str = DEFAULT_VERSION
