"""Names of torchvision for a process that has none and needs none.

sglang imports a few names of torchvision for its vision models while it loads, whatever model it serves. There is no
torchvision that fits a CPU build of torch from the package index, and text models call none of it; so these modules give
every name that is asked for as an empty class.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = (
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


class _EmptyType(type):
    """The class of every stand-in; its attributes (``InterpolationMode.BICUBIC``) are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _EmptyType(name, (), {})


def stand_in_for_torchvision() -> None:
    """Put the stand-ins where ``import torchvision`` looks, unless there is a real one or they are there already."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # transformers remembers the answer; it must be the true one
    for name in MODULES:
        module = _StandIn(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
