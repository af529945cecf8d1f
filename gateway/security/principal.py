"""Who makes a call, as the credential says, and what that lets them do."""

import enum

import msgspec

from gateway.errors.api_error import ApiError, GatewayReason

DEFAULT_TENANT = "default"
"""Of every caller where nobody is told apart."""
INFERENCE_SERVICE = "chairlift.v1.InferenceService"
OPS_SERVICE = "chairlift.v1.OpsService"

_READS = ("Get", "List", "Watch")


class Role(enum.StrEnum):
    """What a credential is for."""

    USER = "user"
    """Requests of one tenant."""
    VIEWER = "viewer"
    """Reads of the operator service: Get, List, Watch."""
    ADMIN = "admin"
    """Every method of the operator service."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller. None stands for "all" in `models` and `methods`, for "no cap of its own" in `max_priority`."""

    name: str
    """Of the credential, for audit lines and logs; never the secret itself."""
    role: Role
    tenant: str | None
    """Whose requests it may make, see and cancel; None: nobody's."""
    models: frozenset[str] | None = None
    methods: frozenset[str] | None = None
    """Of the inference service."""
    max_priority: int | None = None

    @property
    def may_see_requests(self) -> bool:
        """Whether ids and tenants of others' requests are shown on the operator's port; a viewer may be allowed to."""
        return self.role is Role.ADMIN

    @property
    def own_tenant(self) -> str:
        """The tenant. Raises ApiError for a credential that has none."""
        if self.tenant is None:
            raise ApiError(GatewayReason.METHOD_NOT_ALLOWED, "this credential is no tenant's")
        return self.tenant

    def check_method(self, service: str, method: str) -> None:
        """Raises ApiError unless the method of that service (full name) is allowed."""
        if not self._may_call(service, method):
            message = f"the credential {self.name!r} does not allow {method}"
            raise ApiError(GatewayReason.METHOD_NOT_ALLOWED, message, limits=(("role", self.role.value),))

    def check_model(self, model: str) -> None:
        """Raises ApiError unless requests to `model` are allowed."""
        if not self.may_use_model(model):
            raise ApiError(GatewayReason.MODEL_NOT_ALLOWED, "the credential's tenant may not use this model")

    def may_use_model(self, model: str) -> bool:
        """Whether requests to `model` are allowed."""
        return self.models is None or model in self.models

    def cap_priority(self, priority: int) -> int:
        """`priority`, or the most that the tenant may ask for."""
        return priority if self.max_priority is None else min(priority, self.max_priority)

    def _may_call(self, service: str, method: str) -> bool:
        match service:
            case _ if service == INFERENCE_SERVICE:
                return self.tenant is not None and (self.methods is None or method in self.methods)
            case _ if service == OPS_SERVICE:
                return self.role is Role.ADMIN or (self.role is Role.VIEWER and method.startswith(_READS))
            case _:
                # Health and reflection, where the settings do not leave them open: whoever has a credential.
                return True


ANYBODY = Principal(name="anybody", role=Role.ADMIN, tenant=DEFAULT_TENANT)
"""Every caller, where authentication is off: the port itself is what is trusted."""

NOBODY = Principal(name="nobody", role=Role.USER, tenant=None, models=frozenset(), methods=frozenset())
"""Whoever was not let in."""
