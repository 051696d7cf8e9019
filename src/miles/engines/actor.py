"""An embedded engine as a Ray actor: one process that ends when its owner does.

Importing this module loads neither Ray nor torch: whoever starts engines needs the one only then, and never the other.
"""

from typing import TYPE_CHECKING, Any

from miles.engines.embedded.options import Dtype, EmbeddedOptions

if TYPE_CHECKING:
    from miles.engines.embedded.server import EmbeddedServer


class EngineActor:
    """The plain class behind the actor; its methods run on the actor's event loop."""

    def __init__(
        self,
        model_path: str,
        *,
        num_slots: int = 128,
        context_len: int | None = None,
        dtype: Dtype = "float32",
        deterministic: bool = False,
        seed: int | None = None,
        torch_threads: int = 1,
        host: str = "127.0.0.1",
        weight_version: str = "0",
    ) -> None:
        self._options = EmbeddedOptions(
            model_path=model_path,
            num_slots=num_slots,
            context_len=context_len,
            dtype=dtype,
            deterministic=deterministic,
            seed=seed,
            torch_threads=torch_threads,
            host=host,
            weight_version=weight_version,
        )
        self._server: EmbeddedServer | None = None

    async def start(self) -> str:
        """Load the model and listen on a port that the system chooses; the address.

        Raises:
            EngineError: the model cannot be served.
        """
        from transformers.utils.logging import disable_progress_bar

        from miles.engines.embedded.server import EmbeddedServer

        disable_progress_bar()
        self._server = EmbeddedServer(self._options)
        return await self._server.start()

    async def wait(self) -> str:
        """Until the engine ends: why, or "" after ``stop``. A killed process shows as Ray's actor error instead."""
        return "" if self._server is None else await self._server.wait()

    async def stop(self) -> None:
        """Stop listening and end the engine; requests in flight fail."""
        if self._server is not None:
            await self._server.stop()


def remote_engine_actor(**options: Any) -> Any:
    """``EngineActor`` as a Ray actor class; ``options`` are Ray's (``num_cpus``, ``runtime_env``, scheduling, …)."""
    import ray

    return ray.remote(**{"num_cpus": 1, "max_restarts": 0, **options})(EngineActor)
