"""Tells who makes a call, from its headers. The same for every port and protocol."""

import datetime
from collections.abc import Callable, Mapping

from gateway.errors.api_error import ApiError, GatewayReason
from gateway.security.credentials_file import Credential
from gateway.security.principal import ANYBODY, Principal
from gateway.security.tokens import HashedTokens

_SCHEME = "bearer "


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Authenticator:
    """Knows the tokens in force. Without any (None) authentication is off and every caller is `ANYBODY`."""

    def __init__(
        self, tokens: HashedTokens[Credential] | None, clock: Callable[[], datetime.datetime] = _utc_now
    ) -> None:
        self._tokens = tokens
        self._clock = clock

    @property
    def is_on(self) -> bool:
        """Whether callers must show a token."""
        return self._tokens is not None

    def replace(self, tokens: HashedTokens[Credential]) -> None:
        """From now on these tokens count. Calls that are open stay as they are."""
        self._tokens = tokens

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Who calls, by the header ``authorization`` (names in lower case). Raises ApiError (UNAUTHENTICATED)."""
        if self._tokens is None:
            return ANYBODY
        header = headers.get("authorization", "")
        if not header:
            raise ApiError(GatewayReason.MISSING_CREDENTIALS, "send `authorization: Bearer TOKEN`")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise ApiError(GatewayReason.INVALID_CREDENTIALS, "the authorization header is not of the form `Bearer …`")
        credential = self._tokens.find(header[len(_SCHEME) :].strip())
        if credential is None or not credential.is_valid_at(self._clock()):
            raise ApiError(GatewayReason.INVALID_CREDENTIALS, "the token is not known here, or its time is over")
        return credential.principal
