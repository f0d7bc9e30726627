"""`TenantService` on the wire."""

from grpc import ServicerContext

from substrate.api.v1 import tenants_pb2 as pb
from substrate.api.v1.tenants_pb2_grpc import TenantServiceServicer
from substrate.domain.identity import Key, Role
from substrate.rpc import convert
from substrate.rpc.interceptors import call_of
from substrate.services.tenants import Tenants
from substrate.store.tenants import Tenant

_ROLES: dict[int, Role] = {
    pb.ROLE_RUNTIME: Role.RUNTIME,
    pb.ROLE_AUTHOR: Role.AUTHOR,
    pb.ROLE_OPERATOR: Role.OPERATOR,
}


class TenantServicer(TenantServiceServicer):
    """Reads requests, asks the service, writes responses."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def CreateTenant(self, request: pb.CreateTenantRequest, context: ServicerContext) -> pb.CreateTenantResponse:
        """Create a tenant."""
        call = call_of(context)
        tenant = self._tenants.create(call, request.tenant, request.display_name)
        return pb.CreateTenantResponse(tenant=_tenant(tenant), decision_id=call.decision_id)

    def ListTenants(self, request: pb.ListTenantsRequest, context: ServicerContext) -> pb.ListTenantsResponse:
        """Return one page of tenants."""
        call = call_of(context)
        page = self._tenants.list(call, request.page_size, request.page_token)
        return pb.ListTenantsResponse(
            tenants=[_tenant(tenant) for tenant in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )

    def IssueKey(self, request: pb.IssueKeyRequest, context: ServicerContext) -> pb.IssueKeyResponse:
        """Issue a key."""
        call = call_of(context)
        expires_at = convert.moment(request.expire_time, "expire_time") if request.HasField("expire_time") else None
        key, secret = self._tenants.issue_key(
            call, request.tenant, _ROLES.get(request.role), request.agent, request.label, expires_at
        )
        return pb.IssueKeyResponse(key=_key(key), secret=secret, decision_id=call.decision_id)

    def RevokeKey(self, request: pb.RevokeKeyRequest, context: ServicerContext) -> pb.RevokeKeyResponse:
        """Revoke a key."""
        call = call_of(context)
        key = self._tenants.revoke_key(call, request.tenant, request.key_id)
        return pb.RevokeKeyResponse(key=_key(key), decision_id=call.decision_id)

    def ListKeys(self, request: pb.ListKeysRequest, context: ServicerContext) -> pb.ListKeysResponse:
        """Return one page of a tenant's keys."""
        call = call_of(context)
        page = self._tenants.list_keys(call, request.tenant, request.page_size, request.page_token)
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
    )


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
    )
