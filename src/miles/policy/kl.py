"""Estimators of the KL divergence from the policy to the reference, token by token, from log-probs of the tokens sampled.

Source: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html): k1, k2, k3.
"""

from typing import Literal

import torch
from torch import Tensor

KL_LIMIT = 10.0


def kl_terms(current: Tensor, reference: Tensor, kind: Literal["k1", "k2", "k3", "low_var_kl"]) -> Tensor:
    """With d = π − reference: ``k1`` d, ``k2`` d²/2, ``k3`` e^(−d) − 1 + d, ``low_var_kl`` k3 limited to ±10. All [tokens].

    Times π/old they have the gradient of the KL itself on off-policy tokens, too (DeepSeek-V3.2, arXiv 2512.02556, eq. 7).
    """
    difference = current - reference
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    terms = torch.expm1(-difference.clamp(min=-20.0)) + difference
    return terms.clamp(-KL_LIMIT, KL_LIMIT) if kind == "low_var_kl" else terms
