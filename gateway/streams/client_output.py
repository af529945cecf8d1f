"""What a client can be given next, and the call that waits for it.

Whatever gathers while the client is slow leaves together: one delta a choice. It is bounded by the table of
generations, which cuts a client that does not read.
"""

import asyncio

from chairlift.ipc import front
from chairlift.v1 import inference_pb2 as pb
from gateway.streams.choice import Choice
from gateway.streams.logprobs import first_prompt_logprob, prompt_logprobs
from gateway.streams.request_state import RequestState
from gateway.text.token_table import TokenTable


class ClientOutput:
    """Output of one attachment."""

    def __init__(self, token_table: TokenTable, now: float) -> None:
        self.choices: list[Choice] = []
        self._arrived_at = now
        self.taken_at = now
        """When the client was last given something."""
        self._token_table = token_table
        self._first: list[pb.GenerateResponse] = []
        """Accepted and the prompt's log-probabilities, which go before any output."""
        self._untold_ends: list[Choice] = []
        self._is_open = False
        self._waiter: asyncio.Future[None] | None = None
        self._has_news = False
        """Something happened since the last `take` or `wait`."""
        self._writer: asyncio.Task[object] | None = None
        self.was_interrupted = False
        """Whether the call was cancelled from here, and not by its client."""

    @property
    def is_being_written(self) -> bool:
        """Whether the call is busy giving the client what there was, rather than waiting for more."""
        return self._waiter is None

    @property
    def has_news(self) -> bool:
        """Whether `take` may give something."""
        return self._has_news

    @property
    def num_waiting(self) -> int:
        """Tokens that the client could be given now."""
        return sum(choice.num_waiting for choice in self.choices)

    async def wait(self) -> None:
        """Until something has happened since the last `take` or `wait`."""
        if self._has_news:
            self._has_news = False
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._has_news = False

    def wake(self) -> None:
        """There is something to take, or the end."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def serve_in_this_task(self) -> None:
        """The calling task gives the client what is taken from here."""
        self._writer = asyncio.current_task()

    def interrupt(self) -> None:
        """Ends the call's wait for a client that does not read. One that waits for output wakes by itself."""
        if self._writer is not None and self.is_being_written and not self.was_interrupted:
            self.was_interrupted = True
            self._writer.cancel()
        self.wake()

    def take(self, now: float, prompt_tokens: int, seed: int) -> list[bytes]:
        """Encoded messages, in order; empty when there is nothing, and before the client is told that it is in."""
        self.taken_at = now
        self._has_news = False
        if not self._is_open:
            return []
        messages: list[bytes] = []
        if self._first:
            messages = [response.SerializeToString() for response in self._first]
            self._first = []
        for choice in self.choices:
            delta = choice.take_delta()
            if delta is not None:
                messages.append(delta)
        if self._untold_ends:
            for choice in self._untold_ends:
                finished = choice.finished(prompt_tokens, seed, self._arrived_at)
                response = pb.GenerateResponse(event=pb.GenerationEvent(finished=finished))
                messages.append(response.SerializeToString())
            self._untold_ends = []
        return messages

    def tell_accepted(self, accepted: pb.Accepted, state: RequestState) -> None:
        """The first message, and what is known of the prompt from the start."""
        self._is_open = True
        self._first.append(pb.GenerateResponse(event=pb.GenerationEvent(accepted=accepted)))
        if state.wants_prompt_logprobs:
            first = first_prompt_logprob(state.first_prompt_id, self._token_table)
            self._first.append(pb.GenerateResponse(event=pb.GenerationEvent(prompt_logprobs=first)))
        self.wake()

    def tell_prompt_logprobs(self, part: front.DeltaPromptLogprobs) -> None:
        """Log-probabilities of prompt tokens, in order of offset."""
        for message in prompt_logprobs(part, self._token_table):
            self._first.append(pb.GenerateResponse(event=pb.GenerationEvent(prompt_logprobs=message)))
        self.wake()

    def tell_end(self, choice: Choice) -> None:
        """A choice has ended: its last output, then its end."""
        self._untold_ends.append(choice)
        self.wake()
