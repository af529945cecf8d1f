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
    return getattr(package, name)()


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
