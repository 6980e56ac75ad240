"""ASGI application: endpoints, admission and audit. Import this only to build an application (it loads litestar)."""

from __future__ import annotations

from gateway.common.domain.errors import VariantError
from gateway.common.wire.asgi import Application
from gateway.serving.domain.ports import Serving, SettingsTrials, Standings, Statistics
from gateway.serving.frontends.control.about import About
from gateway.serving.frontends.control.authorisation import Audit, caller_of
from gateway.serving.frontends.control.problems import Problems
from gateway.serving.frontends.control.routes import HANDLERS, ControlPorts
from gateway.serving.frontends.control.settings import ControlServerSettings
from gateway.serving.frontends.http.admission import AdmissionMiddleware
from gateway.serving.frontends.http.app import application
from gateway.serving.frontends.http.body import BodyReader
from gateway.serving.frontends.pools import Pool


def create_app(  # noqa: PLR0917  as ControlFrontend, which calls it
    serving: Serving,
    standings: Standings,
    statistics: Statistics,
    trials: SettingsTrials,
    about: About,
    settings: ControlServerSettings,
    requests: Pool,
    request_bytes: Pool,
) -> Application:
    """Return the whole control API as one ASGI application."""
    refuse = Problems(settings.retry_after_s)
    app = application(
        HANDLERS,
        ControlPorts(serving, standings, statistics, trials, about, settings, BodyReader(settings, request_bytes)),
        refuse,
        title="edge-inference-gateway: control",
        description="What serves, by which shares, and commands of the update agent, on a UNIX socket.",
        more={VariantError: refuse.release},
    )
    admission = AdmissionMiddleware(app, lambda scope: caller_of(scope, settings.users), refuse, requests=requests)
    return Audit(admission)
