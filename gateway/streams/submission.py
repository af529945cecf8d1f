"""The request as it is submitted: once, and again when a scheduler was lost with it."""

from collections.abc import Sequence

import msgspec

from chairlift.ipc import front
from chairlift.ipc.tokens import pack_u32
from gateway.streams.choice import Choice


class Submission:
    """A request that this gateway has in full. Times are seconds of the gateway's own clock."""

    def __init__(
        self, submit: front.Submit, arrived_at: float, deadline: float | None, *, is_named: bool = True
    ) -> None:
        """`submit` has neither handle nor deadline yet; `is_named` where the client chose its id."""
        self.submit = submit
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.num_attempts = 0
        self.placement_hint = None if is_named else submit
        """What chooses its replica, by prompt and load; None: its key alone does, so that a repeat finds it."""

    @classmethod
    def taken_up(cls, attached: front.Attached, cache_salt: str, now: float) -> "Submission | None":
        """Of a request that another gateway submitted; None where its scheduler does not tell, or it has ended."""
        submit = attached.submit
        if submit is None:
            return None
        whole = msgspec.structs.replace(submit, gateway_state=attached.gateway_state, cache_salt=cache_salt)
        deadline = None if submit.deadline_in_ns is None else now + submit.deadline_in_ns / 1e9
        taken_up = cls(msgspec.structs.replace(whole, deadline_in_ns=None), now - submit.age_ns / 1e9, deadline)
        taken_up.num_attempts = submit.attempt
        return taken_up

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.submit.prompt) // 4

    def next_attempt(self, handle: int, choices: Sequence[Choice], now: float) -> front.Submit:
        """The message under a new handle; from the second attempt on with everything that a client may have seen."""
        self.num_attempts += 1
        submit = msgspec.structs.replace(
            self.submit,
            handle=handle,
            deadline_in_ns=None if self.deadline is None else max(1, _ns(self.deadline - now)),
        )
        if self.num_attempts == 1:
            return submit
        return msgspec.structs.replace(
            submit,
            attempt=self.num_attempts,
            age_ns=_ns(now - self.arrived_at),
            queue_timeout_in_ns=self._queue_timeout_left(choices, now),
            emitted=tuple(pack_u32(choice.ids) for choice in choices),
            ended=tuple(choice.index for choice in choices if not choice.takes_tokens),
        )

    def _queue_timeout_left(self, choices: Sequence[Choice], now: float) -> int | None:
        """A request that had its place once does not wait for a first one."""
        timeout_ns = self.submit.queue_timeout_in_ns
        if timeout_ns is None or any(len(choice.ids) for choice in choices):
            return None
        return max(1, timeout_ns - _ns(now - self.arrived_at))


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
