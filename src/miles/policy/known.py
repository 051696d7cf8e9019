"""What is known of a rollout's tokens before its first optimiser step; plain columns, so that they travel between ranks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Column = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """[response tokens] each, in the dtype that they were computed in; None where nothing asks for it.

    values: of the text before each token, by the critic. old, reference: log-probs under the policy and the reference.
    """

    values: Column | None = None
    old: Column | None = None
    reference: Column | None = None

    @property
    def kl(self) -> Column | None:
        """``log old − log reference``; None unless both are known."""
        return None if self.old is None or self.reference is None else self.old - self.reference


def column_of(values: "Tensor") -> Column:
    """A tensor as a column."""
    made: Column = values.detach().cpu().numpy()
    return made


def tensor_of(column: Column | None) -> "Tensor | None":
    """A column as a tensor, on the CPU."""
    import torch

    return None if column is None else torch.tensor(column)
