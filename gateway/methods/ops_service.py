"""The operator's methods, put together."""

from collections.abc import Callable

from chairlift.runtime.settings import GatewaySettings
from gateway.gate import Gate
from gateway.link.replicas import Replicas
from gateway.methods.ops_access import Veil
from gateway.methods.ops_changes import Drainer, FlushMethod
from gateway.methods.ops_config import GetConfigMethod, RollbackConfigMethod, UpdateConfigMethod
from gateway.methods.ops_processes import LogLevelMethod, ServerInfoMethod
from gateway.methods.ops_reads import GatewayIdentity, LoadMethod, LoadReader, WatchLoadMethod
from gateway.methods.ops_requests import InspectRequestMethod, ListRequestsMethod, TerminateMethod
from gateway.methods.ops_watch import WatchIterationsMethod
from gateway.server import ServeMethod
from gateway.streams.generation_table import GenerationTable


def ops_methods(
    identity: GatewayIdentity,
    replicas: Replicas,
    table: GenerationTable,
    gate: Gate,
    drain_here: Callable[[bool, float | None], None],
    settings: GatewaySettings,
) -> dict[str, ServeMethod]:
    """By name. `gate` is the public port's, `drain_here` as Drainer has it."""
    veil = Veil(is_lifted=settings.viewers_see_requests)
    reader = LoadReader(identity, replicas, table, gate)
    drainer = Drainer(identity, replicas, drain_here, settings.drain_timeout_s)
    return {
        "GetServerInfo": ServerInfoMethod(identity, replicas),
        "GetLoad": LoadMethod(reader),
        "WatchLoad": WatchLoadMethod(reader),
        "WatchIterations": WatchIterationsMethod(replicas, veil),
        "ListRequests": ListRequestsMethod(replicas, veil),
        "InspectRequest": InspectRequestMethod(replicas),
        "TerminateRequest": TerminateMethod(replicas),
        "Drain": drainer.drain,
        "Undrain": drainer.undrain,
        "GetConfig": GetConfigMethod(replicas, veil),
        "UpdateConfig": UpdateConfigMethod(replicas),
        "RollbackConfig": RollbackConfigMethod(replicas),
        "FlushPrefixCache": FlushMethod(replicas),
        "SetLogLevel": LogLevelMethod(identity, replicas),
    }
