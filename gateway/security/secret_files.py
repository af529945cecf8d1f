"""Everything secret that a gateway reads from files, and its renewal while the gateway runs."""

from collections.abc import Callable, Sequence

import structlog

from chairlift.runtime.exposure import ops_client_ca
from chairlift.runtime.settings import GatewaySettings
from chairlift.runtime.watched_file import WatchedFile, WatchedFileError
from gateway.security.authenticator import Authenticator
from gateway.security.credentials_file import Credential, CredentialsError, parse_credentials
from gateway.security.tls import CLIENT_CA, CertificateFiles, ServerTls, TlsError
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
            self.public_tls = _tls(settings, settings.tls_client_ca_file, CLIENT_CA)
            ops_ca_setting = "gateway.ops_tls_client_ca_file" if settings.ops_tls_client_ca_file else CLIENT_CA
            self.ops_tls = _tls(settings, ops_client_ca(settings), ops_ca_setting)
        except (WatchedFileError, CredentialsError, TlsError) as error:
            raise SecretsError(str(error)) from None
        self.authenticator = Authenticator(tokens)

    @property
    def are_watched(self) -> bool:
        """Whether there is any file that may change."""
        return any(one is not None for one in (self._auth, self.public_tls, self.ops_tls))

    def reload(self) -> None:
        """Takes over what has changed. What cannot be used is logged, once for each problem, and left out."""
        if self._auth is not None:
            self._try("every port", self._reload_tokens)
        for port, tls in (("gateway.listen", self.public_tls), ("gateway.ops_listen", self.ops_tls)):
            if tls is not None:
                self._try(port, tls.reload)

    def _try(self, port: str, reload: Callable[[], Sequence[str]]) -> None:
        """`reload` returns the settings whose files have changed."""
        try:
            for setting in reload():
                self._problems.pop(port, None)
                self._log.info("secrets_reloaded", setting=setting, port=port)
        except (WatchedFileError, CredentialsError, TlsError) as error:
            problem = str(error)
            if self._problems.get(port) != problem:
                self._problems[port] = problem
                self._log.error("secrets_not_reloaded", port=port, reason=problem)

    def _reload_tokens(self) -> Sequence[str]:
        assert self._auth is not None
        content = self._auth.read_if_changed()
        if content is None:
            return ()
        self.authenticator.replace(_parse(self._auth, content))
        return (self._auth.setting,)


def _parse(file: WatchedFile, content: bytes) -> HashedTokens[Credential]:
    try:
        return parse_credentials(content)
    except CredentialsError as error:
        raise CredentialsError(f"{file.setting} = {file.path}: {error}") from None


def _tls(settings: GatewaySettings, client_ca_file: str | None, ca_setting: str) -> ServerTls | None:
    cert, key = settings.tls_cert_file, settings.tls_key_file
    if cert is None and key is None:
        if client_ca_file is not None:
            wanted = "client certificates are asked for over TLS only: set gateway.tls_cert_file, tls_key_file"
            raise TlsError(f"{ca_setting}: {wanted}")
        return None
    if cert is None or key is None:
        raise TlsError("gateway.tls_cert_file and gateway.tls_key_file go together")
    return ServerTls(CertificateFiles(cert, key, client_ca_file, ca_setting))
