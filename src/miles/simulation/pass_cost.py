"""What a forward pass of an engine costs, fitted to the sums that the engine kept (``miles.engines.embedded.work``)."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

TERMS = (0, 1, 2)


class PassCost(NamedTuple):
    """CPU seconds of a pass, of each row that draws a token in it, and of each token that it computes."""

    pass_seconds: float
    row_seconds: float
    token_seconds: float


def fit(works: Sequence[Mapping[str, Any]]) -> PassCost:
    """Least squares with no negative cost, over the steps of all engines.

    Of every choice of terms whose solution is not negative, the one that explains most: with three terms all of them are tried.
    """
    products = np.sum([work["products"] for work in works], axis=0)
    moments = np.sum([work["moments"] for work in works], axis=0)
    best, explained = np.zeros(len(TERMS)), 0.0
    for chosen in (list(terms) for number in TERMS for terms in combinations(TERMS, number + 1)):
        found = np.zeros(len(TERMS))
        found[chosen] = np.linalg.lstsq(products[np.ix_(chosen, chosen)], moments[chosen], rcond=None)[0]
        gain = float(2 * found @ moments - found @ products @ found)
        if (found >= 0).all() and gain > explained:
            best, explained = found, gain
    return PassCost(*map(float, best))
