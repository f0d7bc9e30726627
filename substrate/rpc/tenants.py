"""`TenantService` on the wire."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from grpc import ServicerContext

from substrate.api.v1 import tenants_pb2 as pb
from substrate.api.v1.tenants_pb2_grpc import TenantServiceServicer
from substrate.domain.errors import InvalidArgument
from substrate.domain.identity import Key, Role
from substrate.domain.quotas import Quotas, quotas_to_plain
from substrate.rpc import convert
from substrate.rpc.interceptors import call_of
from substrate.rpc.repeats import answered
from substrate.services.keys import Keys
from substrate.services.tenants import Tenants
from substrate.store.tenants import Tenant

_ROLES: dict[int, Role] = {
    pb.ROLE_RUNTIME: Role.RUNTIME,
    pb.ROLE_AUTHOR: Role.AUTHOR,
    pb.ROLE_OPERATOR: Role.OPERATOR,
}


class TenantServicer(TenantServiceServicer):
    """Reads requests, asks the service, writes responses."""

    def __init__(self, tenants: Tenants, keys: Keys) -> None:
        self._tenants = tenants
        self._keys = keys

    def CreateTenant(self, request: pb.CreateTenantRequest, context: ServicerContext) -> pb.CreateTenantResponse:
        """Create a tenant."""
        call = call_of(context)
        return answered(
            call,
            request,
            lambda: self._tenants.create(call, request.tenant, request.display_name),
            lambda made: pb.CreateTenantResponse(tenant=_tenant(made), decision_id=call.decision_id),
        )

    def ListTenants(self, request: pb.ListTenantsRequest, context: ServicerContext) -> pb.ListTenantsResponse:
        """Return one page of tenants."""
        call = call_of(context)
        page = self._tenants.list(call, request.page_size, request.page_token)
        return pb.ListTenantsResponse(
            tenants=[_tenant(tenant) for tenant in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )

    def SetTenantSuspended(
        self, request: pb.SetTenantSuspendedRequest, context: ServicerContext
    ) -> pb.SetTenantSuspendedResponse:
        """Suspend a tenant or let it go on."""
        call = call_of(context)
        return answered(
            call,
            request,
            lambda: self._tenants.set_suspended(
                call, request.tenant, suspended=request.suspended, reason=request.reason
            ),
            lambda changed: pb.SetTenantSuspendedResponse(tenant=_tenant(changed), decision_id=call.decision_id),
        )

    def GetQuotas(self, request: pb.GetQuotasRequest, context: ServicerContext) -> pb.GetQuotasResponse:
        """Return a tenant's limits and what it has."""
        call = call_of(context)
        quotas, usage = self._tenants.quotas(call, request.tenant)
        used = pb.Quotas(
            skills=usage.skills,
            bytes=usage.bytes,
            agents=usage.agents,
            writes_per_minute=usage.writes_per_minute,
        )
        return pb.GetQuotasResponse(quotas=_quotas(quotas), usage=used, decision_id=call.decision_id)

    def SetQuotas(self, request: pb.SetQuotasRequest, context: ServicerContext) -> pb.SetQuotasResponse:
        """Set a tenant's limits."""
        call = call_of(context)
        wanted = {field.name: value for field, value in request.quotas.ListFields()}
        return answered(
            call,
            request,
            lambda: self._tenants.set_quotas(call, request.tenant, wanted),
            lambda quotas: pb.SetQuotasResponse(quotas=_quotas(quotas), decision_id=call.decision_id),
        )

    def IssueKey(self, request: pb.IssueKeyRequest, context: ServicerContext) -> pb.IssueKeyResponse:
        """Issue a key."""
        call = call_of(context)
        expires_at = convert.moment(request.expire_time, "expire_time") if request.HasField("expire_time") else None
        key, secret = self._keys.issue(
            call,
            request.tenant,
            _ROLES.get(request.role),
            agent=request.agent,
            label=request.label,
            expires_at=expires_at,
            principal=request.principal,
        )
        return pb.IssueKeyResponse(key=_key(key), secret=secret, decision_id=call.decision_id)

    def RevokeKey(self, request: pb.RevokeKeyRequest, context: ServicerContext) -> pb.RevokeKeyResponse:
        """Revoke a key."""
        call = call_of(context)
        return answered(
            call,
            request,
            lambda: self._keys.revoke(call, request.tenant, request.key_id),
            lambda key: pb.RevokeKeyResponse(key=_key(key), decision_id=call.decision_id),
        )

    def RotateKey(self, request: pb.RotateKeyRequest, context: ServicerContext) -> pb.RotateKeyResponse:
        """Issue a key in place of another."""
        call = call_of(context)
        overlap = _length(request.overlap, "overlap") if request.HasField("overlap") else None
        expires_at = convert.moment(request.expire_time, "expire_time") if request.HasField("expire_time") else None
        made = self._keys.rotate(call, request.tenant, request.key_id, overlap, expires_at)
        return pb.RotateKeyResponse(
            key=_key(made.key), secret=made.text, replaced=_key(made.replaced), decision_id=call.decision_id
        )

    def ListKeys(self, request: pb.ListKeysRequest, context: ServicerContext) -> pb.ListKeysResponse:
        """Return one page of a tenant's keys."""
        call = call_of(context)
        page = self._keys.list(call, request.tenant, request.page_size, request.page_token)
        return pb.ListKeysResponse(
            keys=[_key(key) for key in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )


def _tenant(tenant: Tenant) -> pb.Tenant:
    return pb.Tenant(
        tenant=tenant.tenant,
        display_name=tenant.display_name,
        catalog_revision=tenant.catalog_revision,
        create_time=convert.timestamp(tenant.created_at),
        suspend_time=convert.timestamp(tenant.suspended_at),
        suspend_reason=tenant.suspend_reason,
    )


def _quotas(quotas: Quotas) -> pb.Quotas:
    return pb.Quotas(**quotas_to_plain(quotas))


def _length(message: Duration, field: str) -> timedelta:
    try:
        return message.ToTimedelta()
    except (ValueError, OverflowError):
        raise InvalidArgument(field, "Must be a duration of less than 10,000 years.") from None


def _key(key: Key) -> pb.Key:
    return pb.Key(
        tenant=key.tenant,
        key_id=key.key_id,
        role=pb.Role.Value(f"ROLE_{key.role.name}"),
        agent=key.agent or "",
        label=key.label,
        create_time=convert.timestamp(key.created_at),
        expire_time=convert.timestamp(key.expires_at),
        revoke_time=convert.timestamp(key.revoked_at),
        last_use_time=convert.timestamp(key.last_used_at),
        principal=key.principal,
    )
