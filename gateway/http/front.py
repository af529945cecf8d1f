"""The HTTP front of one gateway, put together: its application, its port, its certificate."""

from collections.abc import Mapping
from typing import Any

from chairlift.runtime.addresses import Address
from chairlift.runtime.probes import ProcessState
from chairlift.runtime.settings import GatewaySettings
from chairlift.runtime.watched_file import WatchedFileError
from gateway.call import Method
from gateway.gate import Gate
from gateway.http.app import Front, make_app
from gateway.http.endpoint import HttpLimits
from gateway.http.server import HttpServer
from gateway.http.tls import HttpTls
from gateway.observing import CallObserver
from gateway.security.authenticator import Authenticator
from gateway.security.secret_files import SecretsError
from gateway.security.tls import CertificateFiles, TlsError
from gateway.server import INFERENCE, ServeMethod, make_method

_SPARE_CONNECTIONS = 1000
"""Beside those whose calls are open: idle ones, and those that are told that there is no room."""


class HttpFront:
    """Made with the gateway, in its event loop."""

    def __init__(
        self,
        address: Address,
        settings: GatewaySettings,
        methods: Mapping[str, ServeMethod],
        gate: Gate,
        authenticator: Authenticator,
        observer: CallObserver,
        state: ProcessState,
    ) -> None:
        """`methods` are those of the inference service. Opens nothing yet. Raises SecretsError."""
        self._tls = _tls(settings)

        def method(name: str) -> Method[Any]:
            return make_method(INFERENCE.methods_by_name[name], methods, gate, settings, observer)

        front = Front(
            generate=method("Generate"),
            list_models=method("ListModels"),
            get_model=method("GetModel"),
            gate=gate,
            authenticator=authenticator,
            limits=HttpLimits(max_body_bytes=settings.max_request_bytes, read_timeout_s=settings.http_read_timeout_s),
            state=state,
            exposition=observer.exposition,
        )
        most = settings.max_concurrent_streams + _SPARE_CONNECTIONS
        self._server = HttpServer(make_app(front), address, most, settings.http_read_timeout_s, self._tls)

    async def start(self) -> int:
        """Serves; returns the port. Raises AddressError."""
        return await self._server.start()

    def reload_tls(self) -> None:
        """Takes what the certificates' files hold now for new connections. Any thread's."""
        if self._tls is not None:
            self._tls.reload()

    async def close(self) -> None:
        """Ends what is open and frees the port. A second time does nothing."""
        await self._server.close()


def _tls(settings: GatewaySettings) -> HttpTls | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    try:
        files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
        return HttpTls(files)
    except (TlsError, WatchedFileError) as error:
        raise SecretsError(str(error)) from None
