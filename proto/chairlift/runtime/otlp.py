"""Whether and how telemetry leaves by OTLP: as OpenTelemetry's standard environment variables say, and not otherwise.

Knows no span and no metric. The exporters come with the extra ``otlp``; they are imported where they are wanted only.
"""

import importlib
import os
import socket
from collections.abc import Mapping
from typing import Any, Literal

import structlog
from opentelemetry.sdk.resources import Resource

import chairlift

Signal = Literal["traces", "metrics"]

_MODULES = {"http/protobuf": "http", "grpc": "grpc"}
_EXPORTERS = {"traces": ("trace_exporter", "OTLPSpanExporter"), "metrics": ("metric_exporter", "OTLPMetricExporter")}

_OWN_SESSION = "_CREDENTIAL_PROVIDER"
"""End of the standard variables that name a maker of HTTP sessions."""
_ANSWER_BYTES = 1 << 16


def is_wanted(signal: Signal, environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for that signal: by name, or by an endpoint."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "")
    if chosen:
        return "otlp" in [name.strip() for name in chosen.split(",")]
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return any(environ.get(name) for name in names)


def make_exporter(signal: Signal, environ: Mapping[str, str]) -> Any:
    """The exporter that the environment asks for; None where it asks for none.

    One that is asked for and cannot be had is a warning in the log: no process stays down for its telemetry.
    """
    if not is_wanted(signal, environ):
        return None
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    log = structlog.get_logger()
    if protocol not in _MODULES:
        log.warning("otlp_not_exported", signal=signal, reason=f"no OTLP protocol {protocol!r}; {sorted(_MODULES)}")
        return None
    module, name = _EXPORTERS[signal]
    try:
        package = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{_MODULES[protocol]}.{module}")
    except ModuleNotFoundError as error:
        log.warning("otlp_not_exported", signal=signal, reason=f"{error.name} is missing: chairlift[otlp]")
        return None
    if _MODULES[protocol] != "http" or any(environ.get(key) for key in environ if key.endswith(_OWN_SESSION)):
        return getattr(package, name)()
    session = importlib.import_module("requests").Session()
    session.hooks["response"].append(_read_little)
    return getattr(package, name)(session=session)


def _read_little(response: Any, **_: object) -> None:
    """Takes the beginning of an answer for all of it: who streams without end would fill this process's memory."""
    body = bytearray()
    for part in response.iter_content(_ANSWER_BYTES):
        body += part
        if len(body) >= _ANSWER_BYTES:
            response.raw.close()
            break
    # As `requests` does it, when it has read the whole body.
    response._content, response._content_consumed = bytes(body), True


def process_resource(process: str, environ: Mapping[str, str]) -> Resource:
    """Who speaks: ``chairlift-<process>``, unless the standard variables name the service."""
    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    name = {} if named else {"service.name": f"chairlift-{process}"}
    instance = f"{socket.gethostname()}-{os.getpid()}"
    ours = {
        "service.namespace": "chairlift",
        "service.version": chairlift.__version__,
        "service.instance.id": instance,
    }
    return Resource.create(ours | name)
