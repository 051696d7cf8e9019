"""Engines and policy on the same devices: they take turns.

engines  ═rollout k═ pause·release                         resume weights · update · resume cache · continue ═rollout k+1═
policy                            onload ─step k─ ▲ publish                       offload

An engine that comes back in the policy's turn holds memory and serves at once; it is paused with the others when they resume.
"""

from dataclasses import dataclass, field

from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.weight_calls import MemoryTag, release_memory, resume_memory
from miles.policy.client import PolicyClient
from miles.types import Rollout, StepReport
from miles.weights.publish import PublishState, in_state

EVERYTHING: tuple[MemoryTag, ...] = ("kv_cache", "weights")


@dataclass(slots=True)
class EngineTurns:
    """Who has the devices; implements ``weights.publish.Turns``.

    offloads_rollout: engines give their memory back while the policy trains. offloads_train: the policy does while they sample.
    """

    engines: EngineFleet
    policy: PolicyClient
    offloads_rollout: bool
    offloads_train: bool
    timeout_seconds: float
    released: set[EngineClient] = field(default_factory=set)

    async def give_to_policy(self, what: str) -> None:
        """Engines stop and release; the policy takes the devices. ``what`` it is for, in errors."""
        async with self.engines.steering:
            await in_state(PublishState.PAUSE, what, self.timeout_seconds, self.engines.pause("retract"))
            if self.offloads_rollout:
                await in_state(PublishState.RELEASE, what, self.timeout_seconds, self._release_all())
        if self.offloads_train:
            await self.policy.onload()

    async def resume_weights(self) -> None:
        """Paused engines can take weights; those that never stopped are paused now."""
        await self.engines.pause("retract")
        await self.engines.on_all(lambda client: self._resume(client, "weights"))

    async def resume_cache(self) -> None:
        """The policy leaves the devices, and engines can decode."""
        if self.offloads_train:
            await self.policy.offload()
        await self.engines.on_all(lambda client: self._resume(client, "kv_cache"))
        self.released.clear()

    async def _release_all(self) -> None:
        await self.engines.on_all(self._release)

    async def _release(self, client: EngineClient) -> None:
        await release_memory(client, EVERYTHING)
        self.released.add(client)

    async def _resume(self, client: EngineClient, tag: MemoryTag) -> None:
        if client in self.released:
            await resume_memory(client, [tag])


@dataclass(frozen=True, slots=True)
class PolicyInTurn:
    """The policy for the loops: it trains in its turn. The engines' turn begins with the publication that follows."""

    policy: PolicyClient
    turns: EngineTurns

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Take the devices, then the optimiser steps of one rollout."""
        await self.turns.give_to_policy(f"the devices for the policy's step {rollout.rollout_id}")
        return await self.policy.train_on(rollout, policy_version)
