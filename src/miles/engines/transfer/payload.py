"""Tensors that another process of this host maps instead of receiving: handles to shared memory, or to a GPU's memory.

The text is what SGLang's ``/update_weights_from_tensor`` takes: a pickle of ``[(name, tensor)]`` in which torch has put the
handles, in base64. Reading it constructs nothing but tensors.
"""

import base64
import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

SHARED_BY_NAME = "file_system"  # the default shares descriptors, which only a parent and its children can pass on
TENSOR_PARTS = frozenset(
    [
        ("builtins", "list"),
        ("builtins", "tuple"),
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch", "Tensor"),
        ("torch", "device"),
        ("torch.storage", "UntypedStorage"),
        ("torch.storage", "TypedStorage"),
        ("torch.multiprocessing.reductions", "rebuild_tensor"),
        ("torch.multiprocessing.reductions", "rebuild_storage_filename"),
        ("torch.multiprocessing.reductions", "rebuild_storage_empty"),
        ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
        ("torch.multiprocessing.reductions", "rebuild_typed_storage_child"),
        ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
    ]
)


@contextmanager
def shared_by_name() -> Iterator[None]:
    """Memory that is shared in this block can be mapped by any process of the user, not by children alone."""
    sharing: Any = torch.multiprocessing
    before = sharing.get_sharing_strategy()
    sharing.set_sharing_strategy(SHARED_BY_NAME)
    try:
        yield
    finally:
        sharing.set_sharing_strategy(before)


def pack_tensors(named: Sequence[tuple[str, Tensor]]) -> str:
    """A payload for one receiver; each must be read exactly once, since it counts as a user of the memory."""
    buffer = io.BytesIO()
    with shared_by_name():
        ForkingPickler(buffer).dump(list(named))
    return base64.b64encode(buffer.getvalue()).decode()


def unpack_tensors(payload: str) -> list[tuple[str, Tensor]]:
    """The tensors of a payload, mapped into this process.

    Raises:
        ValueError: it is no such payload, or its memory is gone.
    """
    try:
        named = _TensorUnpickler(io.BytesIO(base64.b64decode(payload, validate=True))).load()
    except Exception as error:  # nonsense makes a pickle raise anything
        raise ValueError(f"the payload cannot be read: {error}") from error
    if not isinstance(named, list) or not all(_is_named_tensor(entry) for entry in named):
        raise ValueError("the payload is no list of names and tensors")
    return named


def _is_named_tensor(entry: object) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], Tensor)


class _TensorUnpickler(pickle.Unpickler):
    """Builds tensors and refuses everything else: whoever reaches the port must not run code here."""

    def find_class(self, module: str, name: str) -> Any:
        """The parts of a tensor; of torch's own names its dtypes as well."""
        if (module, name) in TENSOR_PARTS:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")


def cuda_handles_by_uuid() -> None:
    """Let handles to GPU memory name the device by its UUID: sender and receiver may count their devices differently.

    SGLang does the same on its side and reads both forms.
    """
    if getattr(reductions, "_names_devices_by_uuid", False):
        return
    original: Any = reductions.reduce_tensor
    device_argument = 6

    def reduce_tensor(tensor: Tensor) -> Any:
        function, arguments = original(tensor)
        if not tensor.is_cuda:
            return function, arguments
        uuid = str(torch.cuda.get_device_properties(arguments[device_argument]).uuid)
        return function, (*arguments[:device_argument], uuid, *arguments[device_argument + 1 :])

    reductions.reduce_tensor = reduce_tensor
    reductions._names_devices_by_uuid = True  # type: ignore[attr-defined]
    reductions.init_reductions()  # type: ignore[no-untyped-call]
