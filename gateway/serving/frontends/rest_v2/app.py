"""ASGI application of REST: endpoints after admission control. Import this only to build one (it loads litestar)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.common.wire.asgi import Application
from gateway.serving.domain.cameras import CameraViews
from gateway.serving.domain.ports import Repository, Statistics
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.http.admission import AdmissionMiddleware
from gateway.serving.frontends.http.app import application
from gateway.serving.frontends.http.body import BodyReader
from gateway.serving.frontends.http.browsers import BrowserGuard, own_names
from gateway.serving.frontends.openai.routes import HANDLERS as OPENAI_HANDLERS
from gateway.serving.frontends.pools import Pool
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.rest_v2.authorisation import OPEN_PATHS, admit, check_rights
from gateway.serving.frontends.rest_v2.cameras import CAMERA_HANDLERS
from gateway.serving.frontends.rest_v2.direct import DirectInference
from gateway.serving.frontends.rest_v2.errors import RestRefusals
from gateway.serving.frontends.rest_v2.page import front_page
from gateway.serving.frontends.rest_v2.regions import REGION_HANDLERS
from gateway.serving.frontends.rest_v2.requests import RestEngine, RestPorts
from gateway.serving.frontends.rest_v2.routes import HANDLERS, REFUSING_HANDLERS
from gateway.serving.frontends.rest_v2.settings import RestSettings


def create_app(  # noqa: PLR0917  as RestFrontend, which calls it
    inference: RestEngine,
    repository: Repository,
    statistics: Statistics,
    settings: RestSettings,
    authentication: Authentication,
    metrics_text: Callable[[], Awaitable[tuple[bytes, str]]],
    regions: Regions | None,
    cameras: CameraViews | None,
    requests: Pool,
    request_bytes: Pool,
) -> tuple[Application, DirectInference]:
    """Return the whole REST frontend as an ASGI application, and the part of it that serves direct requests.

    `metrics_text` gives the metrics page and its content type.
    """
    refuse = RestRefusals(settings.retry_after_s)
    bodies = BodyReader(settings, request_bytes, inference.decoding)
    ports = RestPorts(
        inference,
        repository,
        statistics,
        settings,
        metrics_text,
        bodies,
        regions,
        authentication,
        cameras,
    )
    app = application(
        (front_page, *HANDLERS, *REGION_HANDLERS, *CAMERA_HANDLERS, *OPENAI_HANDLERS, *REFUSING_HANDLERS),
        ports,
        refuse,
        title="edge-inference-gateway",
        description="Open Inference Protocol v2 with Triton's extensions, and OpenAI's API below /v1.",
        guard=check_rights,
    )
    names = own_names(settings.hosts)
    admission = AdmissionMiddleware(
        app,
        lambda scope: admit(scope, authentication, names),
        refuse,
        requests=requests,
        open_paths=OPEN_PATHS,
    )
    guarded = BrowserGuard(admission, settings.cors_origins, refuse, authentication.count)
    return guarded, DirectInference(ports, requests, names, refuse)
