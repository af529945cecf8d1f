"""The client library: the one way in which users, the command line, benchmarks and tests talk to a server.

    from chairlift.client import Client

    with Client("127.0.0.1:50051") as client:
        print(client.generate("The capital of France is", max_tokens=8).text)
        for delta in client.stream([{"role": "user", "content": "Hello"}], temperature=0):
            print(delta.text, end="", flush=True)

`AsyncClient` has the same methods for asyncio. Errors are subclasses of `ChairliftError`. Broken connections are
repeated and resumed where that is safe (`RetryPolicy`).
"""

from chairlift.client.aio import AsyncClient
from chairlift.client.aio_generation import AsyncGeneration
from chairlift.client.batch import BatchItem, Job
from chairlift.client.blocking import Client
from chairlift.client.blocking_generation import Generation
from chairlift.client.connection import DEFAULT_TARGET, Tls
from chairlift.client.errors import (
    AbortedError,
    AlreadyExistsError,
    ChairliftError,
    DeadlineExceededError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    QuotaViolation,
    RequestCancelledError,
    ResourceExhaustedError,
    StreamBrokenError,
    StreamCorruptError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from chairlift.client.recovery import RetryPolicy
from chairlift.client.requests import ChatMessage, GenerateOptions, Prompt
from chairlift.client.results import (
    Accepted,
    Alternative,
    CancelOutcome,
    Choice,
    Completion,
    Delta,
    Explanation,
    Failure,
    FinishReason,
    Limits,
    Model,
    RequestState,
    Timing,
    Tokenization,
    TokenLogprob,
    Usage,
)

__all__ = [
    "DEFAULT_TARGET",
    "AbortedError",
    "Accepted",
    "AlreadyExistsError",
    "Alternative",
    "AsyncClient",
    "AsyncGeneration",
    "BatchItem",
    "CancelOutcome",
    "ChairliftError",
    "ChatMessage",
    "Choice",
    "Client",
    "Completion",
    "DeadlineExceededError",
    "Delta",
    "Explanation",
    "Failure",
    "FieldViolation",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "InternalError",
    "InvalidArgumentError",
    "Job",
    "Limits",
    "Model",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Prompt",
    "QuotaViolation",
    "RequestCancelledError",
    "RequestState",
    "ResourceExhaustedError",
    "RetryPolicy",
    "StreamBrokenError",
    "StreamCorruptError",
    "Timing",
    "Tls",
    "TokenLogprob",
    "Tokenization",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
]
