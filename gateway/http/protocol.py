"""One HTTP/1.1 connection: uvicorn's protocol with a deadline for heads, and its errors in our form.

Bodies have a deadline where they are read. Knows no path.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.http.endpoint import TRANSPORT
from gateway.http.openai_errors import plain_error


class TimedProtocol(H11Protocol):
    """Ends a connection whose next head does not arrive in time, counted from its first byte, or from the start.

    The rest of a body that was refused has the same time.
    """

    def __init__(self, head_timeout_s: float, /, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Hands the transport on too, so that a client that does not read can be cut."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, TRANSPORT: transport}
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leaves no timer behind."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A head's first byte starts its time."""
        super().data_received(data)
        if self._waits_for_more:
            self._start_timer()

    def handle_events(self) -> None:
        """A head that is whole has no deadline any more; one that came in part during an answer has it from here."""
        super().handle_events()
        if not self._waits_for_more:
            self._stop_timer()
        elif self.conn.trailing_data[0]:
            self._start_timer()

    def on_response_complete(self) -> None:
        """An answer before the end of its request's body leaves the rest to come."""
        super().on_response_complete()
        if self.conn.our_state is h11.DONE:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP."""
        self._refuse(400, msg, "malformed_http")

    @property
    def _waits_for_more(self) -> bool:
        return self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE

    def _start_timer(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self._head_timeout_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out(self) -> None:
        self._head_timer = None
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, "the request's head did not arrive in time", "head_timeout")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # It has its answer, or a part of it.
            self.transport.close()
            return
        error = plain_error(status, message, code)
        headers = [("content-type", "application/json"), ("content-length", str(len(error.body)))]
        head = h11.Response(status_code=status, headers=[*headers, ("connection", "close")], reason=b"")
        for event in (head, h11.Data(data=error.body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
