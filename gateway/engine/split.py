"""Several versions of one model that share its requests; exists only while they do.

It replaces a servable in the routes, so that models that are not shared pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.errors import RequestError
from gateway.domain.infer import InferRequest
from gateway.domain.ports import Pending, Sink
from gateway.domain.sharing import WeightedRoundRobin, main_version
from gateway.engine.quotas import QuotaUse
from gateway.engine.servable import Servable
from gateway.engine.shadow import Shadow


class Split:
    """Versions of a model that take `turns`. `shadow`, if there is one, gets requests that another version answered.

    Manifest, placement and statistics of the model are those of the version with most weight.
    """

    def __init__(self, servables: Mapping[str, Servable], turns: WeightedRoundRobin, shadow: Servable | None) -> None:
        main = servables[main_version(turns.weights)]
        self.manifest, self.placement, self.statistics = main.manifest, main.placement, main.statistics
        self._servables, self._turns = servables, turns
        self._shadow = None if shadow is None else Shadow(shadow)

    def check(self, request: InferRequest) -> None:
        """Implement `Inference.check`: refuse a request that every version refuses."""
        refusal: RequestError | None = None
        for servable in self._servables.values():
            try:
                servable.check(request)
            except RequestError as error:
                refusal = refusal or error
            else:
                return
        if refusal is not None:
            raise refusal

    def raw_batch(self, _request: InferRequest) -> None:
        """Return None: each request has its turn."""

    def submit(self, request: InferRequest, sink: Sink, token: Any, account: QuotaUse | None = None) -> Pending:
        """Implement `Submission.submit`: pass the request to the version whose turn it is."""
        servable, shadow = self._servables[self._turns.next()], self._shadow
        if shadow is None or shadow.servable is servable:
            return servable.submit(request, sink, token, account)
        return shadow.submit(servable, request, sink, token, account)
