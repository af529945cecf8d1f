"""Everything secret that a gateway reads from files, and its renewal while the gateway runs."""

from collections.abc import Callable

import structlog

from chairlift.runtime.exposure import ops_client_ca
from chairlift.runtime.settings import GatewaySettings
from chairlift.runtime.watched_file import WatchedFile, WatchedFileError
from gateway.security.authenticator import Authenticator
from gateway.security.credentials_file import Credential, CredentialsError, parse_credentials
from gateway.security.tls import ServerTls, TlsError
from gateway.security.tokens import HashedTokens


class SecretsError(ValueError):
    """A file of secrets with which a gateway cannot start. The message names it and quotes nothing."""


class SecretFiles:
    """Reads them once, and again whenever their content changes. A bad new content leaves the old one in force."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises SecretsError."""
        self._log = structlog.get_logger()
        self._problems: dict[str, str] = {}
        self._auth = None if settings.auth_file is None else WatchedFile(settings.auth_file, "gateway.auth_file")
        try:
            tokens = None if self._auth is None else _parse(self._auth, self._auth.read_if_changed() or b"")
            self.public_tls = _tls(settings, settings.tls_client_ca_file)
            self.ops_tls = _tls(settings, ops_client_ca(settings))
        except (WatchedFileError, CredentialsError, TlsError) as error:
            raise SecretsError(str(error)) from None
        self.authenticator = Authenticator(tokens)

    def reload(self) -> None:
        """Takes over what has changed. What cannot be used is logged, once for each problem, and left out."""
        if self._auth is not None:
            self._try("gateway.auth_file", self._reload_tokens)
        for name, tls in (("gateway.tls_cert_file", self.public_tls), ("gateway.ops_tls_client_ca_file", self.ops_tls)):
            if tls is not None:
                self._try(name, tls.reload)

    def _try(self, name: str, reload: Callable[[], bool]) -> None:
        try:
            if reload():
                self._problems.pop(name, None)
                self._log.info("secrets_reloaded", setting=name)
        except (WatchedFileError, CredentialsError, TlsError) as error:
            problem = str(error)
            if self._problems.get(name) != problem:
                self._problems[name] = problem
                self._log.error("secrets_not_reloaded", setting=name, reason=problem)

    def _reload_tokens(self) -> bool:
        assert self._auth is not None
        content = self._auth.read_if_changed()
        if content is None:
            return False
        self.authenticator.replace(_parse(self._auth, content))
        return True


def _parse(file: WatchedFile, content: bytes) -> HashedTokens[Credential]:
    try:
        return parse_credentials(content)
    except CredentialsError as error:
        raise CredentialsError(f"{file.setting} = {file.path}: {error}") from None


def _tls(settings: GatewaySettings, client_ca_file: str | None) -> ServerTls | None:
    cert, key = settings.tls_cert_file, settings.tls_key_file
    if cert is None and key is None:
        if client_ca_file is not None:
            raise TlsError("client certificates are asked for over TLS only: set gateway.tls_cert_file, tls_key_file")
        return None
    if cert is None or key is None:
        raise TlsError("gateway.tls_cert_file and gateway.tls_key_file go together")
    return ServerTls(cert, key, client_ca_file)
