"""Sessions of a policy that is served: the frames and the recurrent state of each caller."""

from __future__ import annotations

from collections import OrderedDict

from rlplug.serving.policy import Policy

__all__ = ["Sessions"]

MOST = 1000


class Sessions:
    """The policies of sessions, which share their weights; the one unused for longest is evicted.

    Not for several threads at once: callers hold a lock.
    """

    def __init__(self, policy: Policy, most: int = MOST) -> None:
        self._policy = policy
        self._most = most
        self._policies: OrderedDict[str, Policy] = OrderedDict()
        self.evicted = 0
        """How many were forgotten so far."""

    def __len__(self) -> int:
        return len(self._policies)

    def __contains__(self, name: str) -> bool:
        return name in self._policies

    def get(self, name: str = "", *, reset: bool = False) -> Policy:
        """The policy of a session; without a name, one whose episodes begin now."""
        if not name:
            self._policy.reset()
            return self._policy
        policy = self._policies.get(name)
        if policy is None:
            policy = self._policies[name] = self._policy.fork()
            if len(self._policies) > self._most:
                self._policies.popitem(last=False)
                self.evicted += 1
        self._policies.move_to_end(name)
        if reset:
            policy.reset()
        return policy
