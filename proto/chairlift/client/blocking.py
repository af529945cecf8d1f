"""The client for programs without an event loop: every method of the public contract."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from chairlift.client import convert
from chairlift.client.batch import BatchItem, Job, OnResult, Prepared, check_concurrency, patient, prepare_batch
from chairlift.client.blocking_generation import Gateways, Generation, error_from
from chairlift.client.connection import CANCEL_TIMEOUT_S, DEFAULT_TARGET, KEEPALIVE_S, Tls, make_connection
from chairlift.client.errors import ChairliftError
from chairlift.client.jitter import jitter
from chairlift.client.recovery import Recovery, RetryPolicy
from chairlift.client.requests import GenerateOptions, Prompt, build_generate, build_tokenize, let_outlive_its_stream
from chairlift.client.results import CancelOutcome, Completion, Explanation, Model, Tokenization
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc

_T = TypeVar("_T")
_UNARY_TIMEOUT_S = 60.0


class Client:
    """Talks to one deployment, through one or several gateways. A context manager; threads may share it."""

    def __init__(
        self,
        target: str | Sequence[str] = DEFAULT_TARGET,
        *,
        token: str | Path | None = None,
        tls: Tls | bool = False,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        keepalive_s: float = KEEPALIVE_S,
        allow_plaintext_token: bool = False,
    ) -> None:
        """`timeout` (seconds) is the deadline of calls that name none; a `token` that is a Path is read for each call.
        Connects with the first call.

        Raises ValueError for an unusable target, OSError for a TLS file that cannot be read.
        """
        connection = make_connection(target, token, tls, keepalive_s, allow_plaintext_token=allow_plaintext_token)
        self._gateways = Gateways(connection)
        self._timeout = timeout
        self._retry = RetryPolicy() if retry is None else retry

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Completion:
        """The whole completion of text, token ids or a conversation. Raises ChairliftError."""
        with self.stream(prompt, **options) as generation:
            return generation.wait()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """A completion as it is made: iterate it for deltas. Raises TypeError and InvalidArgumentError."""
        timeout = options.get("timeout", self._timeout)
        return self._generation(build_generate(prompt, options), timeout, self._retry)

    def generate_many(
        self,
        prompts: Iterable[Prompt | Job],
        *,
        concurrency: int = 64,
        on_result: OnResult | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[BatchItem]:
        """Completions in the order of `prompts`; in place of one that failed, its error.

        At most `concurrency` run at a time; refusals for want of room are waited out. `options` hold for every prompt,
        a `Job` has some of its own beside them. `on_result` is called with (position, result) as each one ends, one
        call at a time.
        """
        check_concurrency(concurrency)
        batch = prepare_batch(prompts, options, self._timeout)
        retry = patient(self._retry)
        running = [
            self._generation(item.request, item.timeout, retry) if isinstance(item, Prepared) else item
            for item in batch
        ]
        told = threading.Lock()

        def work(position: int) -> BatchItem:
            result = _outcome(running[position])
            if on_result is not None:
                with told:
                    on_result(position, result)
            return result

        with ThreadPoolExecutor(max(1, min(concurrency, len(batch))), "chairlift-generate") as threads:
            try:
                return list(threads.map(work, range(len(batch))))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for generation in running:
                    if isinstance(generation, Generation):
                        generation.close()
                raise

    def tokenize(
        self, prompt: str | Sequence[Any], *, model: str = "", add_special_tokens: bool | None = None
    ) -> Tokenization:
        """Token ids of text or a conversation."""
        request = build_tokenize(prompt, model, add_special_tokens)
        reply = self._call(lambda stub, settings: stub.Tokenize(request, **settings))
        return Tokenization(token_ids=tuple(reply.token_ids), pieces=tuple(reply.pieces))

    def detokenize(self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool | None = None) -> str:
        """Text of token ids."""
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return (self._call(lambda stub, settings: stub.Detokenize(request, **settings))).text

    def list_models(self) -> list[Model]:
        """The models that are served."""
        models: list[Model] = []
        request = pb.ListModelsRequest()
        while True:
            page = self._call(lambda stub, settings: stub.ListModels(request, **settings))
            models += [convert.model_from(model) for model in page.models]
            if not page.next_page_token:
                return models
            request.page_token = page.next_page_token

    def get_model(self, model: str = "") -> Model:
        """One model and its limits; without a name, the only one served."""
        request = pb.GetModelRequest(model=model)
        return convert.model_from((self._call(lambda stub, settings: stub.GetModel(request, **settings))).model)

    def cancel(self, request_id: str) -> CancelOutcome:
        """Ends a request of this caller's."""
        return self._cancel(request_id, None)

    def explain(self, request_id: str) -> Explanation:
        """Where the time of a request of this caller's went."""
        request = pb.ExplainRequest(request_id=request_id)
        return convert.explanation_from(self._call(lambda stub, settings: stub.Explain(request, **settings)))

    def close(self) -> None:
        """Ends open streams and connections."""
        self._gateways.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _generation(self, request: pb.GenerateRequest, timeout: float | None, retry: RetryPolicy) -> Generation:
        let_outlive_its_stream(request, retry.detach_grace_s if retry.can_resume else 0.0)
        return Generation(self._gateways, request, timeout, retry, self._cancel_soon)

    def _cancel_soon(self, request_id: str) -> CancelOutcome:
        return self._cancel(request_id, CANCEL_TIMEOUT_S)

    def _cancel(self, request_id: str, timeout_s: float | None) -> CancelOutcome:
        request = pb.CancelRequest(request_id=request_id)
        reply = self._call(lambda stub, settings: stub.Cancel(request, **settings), timeout_s)
        return convert.CANCEL_OUTCOMES.get(reply.outcome, CancelOutcome.UNKNOWN)

    def _call(
        self, send: "Callable[[pb_grpc.InferenceServiceStub, dict[str, Any]], _T]", timeout_s: float | None = None
    ) -> _T:
        """One unary call, repeated while that is safe and helps."""
        if timeout_s is None:
            timeout_s = _UNARY_TIMEOUT_S if self._timeout is None else self._timeout
        recovery = Recovery(self._retry, time.monotonic() + timeout_s)
        while True:
            settings = {"timeout": recovery.remaining_s(time.monotonic()), "metadata": self._gateways.metadata}
            try:
                return send(self._gateways.current(), settings)
            except grpc.RpcError as failure:
                error = error_from(failure)
                pause = recovery.pause_before_retry(error, time.monotonic(), jitter())
                self._gateways.turn_from_current(error)
                time.sleep(pause)


def _outcome(item: Generation | ChairliftError) -> BatchItem:
    if isinstance(item, ChairliftError):
        return item
    try:
        with item:
            return item.wait()
    except ChairliftError as error:
        return error
