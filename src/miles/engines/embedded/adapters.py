"""One LoRA adapter, merged into the weights: it counts for every request, also for those that run when it comes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from miles.engines.embedded.weights import check_weights, copy_weights, first_names
from miles.engines.transfer.adapter import read_adapter
from miles.errors import EngineError


class HeldAdapter:
    """The adapter of a model, if it has one.

    name: empty without one. The weights that it changed are kept as they were, so that they can be put back exactly.
    """

    def __init__(self, network: Any) -> None:
        self._network = network
        self._before: Mapping[str, Tensor] = {}
        self.name = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may name."""
        return (self.name,) if self.name else ()

    def read(self, name: str, folder: Path) -> dict[str, Tensor]:
        """The weights with the folder's adapter in them and no other, by name; may run beside the model.

        Raises:
            EngineError: it cannot be read or does not fit, or there is one of another name.
        """
        if self.name not in ("", name):
            raise EngineError(f"the adapter {self.name} is loaded, and this engine holds one: unload it first.")
        factors, names = read_adapter(folder), first_names(self._network)
        unknown = sorted(name for name in factors if name not in names)
        if unknown:
            raise EngineError(f"the adapter in {folder} changes weights that the model has not: {', '.join(unknown[:5])}.")
        merged = {}
        for changed, one in factors.items():
            weight = self._plain(names[changed])
            shape = one.up.shape[0], one.down.shape[1]
            if shape != tuple(weight.shape) or one.up.shape[1] != one.down.shape[0]:
                raise EngineError(f"the adapter in {folder} does not fit {changed}, which is {tuple(weight.shape)}.")
            merged[names[changed]] = (weight.float() + one.update().float()).to(weight.dtype)
        return check_weights(self._network, merged, str(folder), is_whole=False)

    def put_on(self, name: str, merged: Mapping[str, Tensor]) -> None:
        """Between two steps of the model: the weights that ``read`` gave, in the place of the adapter before."""
        others = [weight for weight in merged if weight not in self._before]
        copies = {weight: self._network.get_parameter(weight).detach().clone() for weight in others}
        copy_weights(self._network, {**self._before, **merged})
        self._before, self.name = {**self._before, **copies}, name

    def take_off(self) -> None:
        """Between two steps of the model: the weights as they were before."""
        copy_weights(self._network, self._before)
        self._before, self.name = {}, ""

    def _plain(self, weight: str) -> Tensor:
        """A weight without the adapter."""
        return self._before[weight] if weight in self._before else self._network.get_parameter(weight).detach()
