"""REST server on its listeners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gateway.common.domain.access import Security
from gateway.common.wire.asgi import Application
from gateway.serving.domain.cameras import CameraViews
from gateway.serving.domain.ports import Repository, Statistics
from gateway.serving.frontends.http.server import HttpServer
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.rest_v2.errors import RestRefusals
from gateway.serving.frontends.rest_v2.settings import RestSettings

if TYPE_CHECKING:
    from gateway.serving.frontends.http.direct import Direct
    from gateway.serving.frontends.rest_v2.requests import RestEngine


class RestFrontend(HttpServer):
    """REST on any number of addresses: an HttpServer that builds REST's application."""

    def __init__(  # noqa: PLR0917  the daemon wires ports, settings and guards in this order
        self,
        inference: RestEngine,
        repository: Repository,
        statistics: Statistics,
        settings: RestSettings,
        security: Security,
        metrics_text: Callable[[], Awaitable[tuple[bytes, str]]],
        regions: Regions | None = None,
        *,
        cameras: CameraViews | None = None,
        pools: Pools | None = None,
    ) -> None:
        """Set up the server. `regions`: None if shared memory is not allowed. `pools`: factory of shared resources."""

        def build() -> tuple[Application, Direct]:
            from gateway.serving.frontends.rest_v2.app import create_app

            ports = (inference, repository, statistics, settings, self.authentication, metrics_text, regions)
            return create_app(*ports, cameras, self.requests, self.request_bytes)

        super().__init__(settings, security, "http", RestRefusals(settings.retry_after_s), build, pools=pools)
