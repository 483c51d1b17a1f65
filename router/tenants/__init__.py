"""Tenants: who is served, by which key, and how they are kept apart."""

from router.tenants.tenant import ANONYMOUS, UNLIMITED, Tenant, TenantLimits

__all__ = ["ANONYMOUS", "UNLIMITED", "Tenant", "TenantLimits"]
