"""Control API server on its UNIX socket; its libraries are loaded when the first peer connects."""

from __future__ import annotations

from gateway.common.domain.access import Security
from gateway.common.wire.asgi import Application
from gateway.serving.domain.ports import Serving, SettingsTrials, Standings, Statistics
from gateway.serving.frontends.control.about import About
from gateway.serving.frontends.control.authorisation import may_command
from gateway.serving.frontends.control.problems import Problems
from gateway.serving.frontends.control.settings import ControlServerSettings
from gateway.serving.frontends.http.server import HttpServer
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pools


class ControlFrontend(HttpServer):
    """HttpServer that builds the control API at the first connection."""

    def __init__(  # noqa: PLR0917  as `serving.control_frontend`, which calls it
        self,
        serving: Serving,
        standings: Standings,
        statistics: Statistics,
        trials: SettingsTrials,
        about: About,
        settings: ControlServerSettings,
        pools: Pools | None = None,
    ) -> None:
        """Set up the server.

        `pools` makes the pools of resources. Callers that may send commands are trusted: each may use a whole pool.
        """

        def build() -> Application:
            from gateway.serving.frontends.control.app import create_app

            return create_app(
                serving, standings, statistics, trials, about, settings, self.requests, self.request_bytes
            )

        def welcome(peer: Peer) -> bool:
            return may_command(peer, settings.users)

        refuse = Problems(settings.retry_after_s)
        undivided = (pools or Pools()).undivided()
        super().__init__(settings, Security(), "control", refuse, build, welcome=welcome, pools=undivided)

    async def serve(self) -> None:
        """Wait for the first peer, then answer it and all later ones. Cancel this before `stop`."""
        await self.first_peer()
        await self.answer()
