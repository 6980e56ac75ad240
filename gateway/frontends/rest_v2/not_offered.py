"""Endpoints of Triton's extensions that this gateway does not offer. Import only to build an application."""

from litestar import HttpMethod, route

from gateway.domain.rights import ANY_CALLER
from gateway.frontends.not_offered import no_log_settings, no_trace_settings
from gateway.frontends.rest_v2.routes import MODEL

_ANY = [HttpMethod.GET, HttpMethod.POST]


@route(
    ["/v2/trace/setting", MODEL + "/trace/setting"],
    http_method=_ANY,
    include_in_schema=False,
    opt={"needs": ANY_CALLER},
)
async def trace_setting() -> None:
    """Refuse to read or change the trace settings."""
    raise no_trace_settings()


@route("/v2/logging", http_method=_ANY, include_in_schema=False, opt={"needs": ANY_CALLER})
async def log_settings() -> None:
    """Refuse to read or change the log settings."""
    raise no_log_settings()


REFUSING_HANDLERS = (trace_setting, log_settings)
