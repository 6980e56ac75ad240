"""Health of the server and of each model, as it changes."""

import asyncio
from contextlib import aclosing

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import EVERYTHING
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.service.health import HealthService
from gateway.serving.frontends.grpc_v2.service.load import Load
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.settings import ShareSettings
from tests.simulators.constants import settings_with
from tests.simulators.inference import SimulatedInference

pytestmark = pytest.mark.asyncio
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)
CALL = CallInfo(rights=EVERYTHING)
MODEL = "identity_fp32"


@pytest.fixture
def inference():
    return SimulatedInference()


@pytest.fixture
def health(inference):
    settings = settings_with(GrpcSettings(), max_health_watches=4)
    return HealthService(inference, Load(settings, Pools(ShareSettings(caller_percent=50))))


def asked(service=""):
    return message("grpc.health.v1.HealthCheckRequest")(service=service)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", MODEL])
async def test_serving(health, service):
    assert (await health.check(asked(service), CALL)).status == SERVING


async def test_a_model_that_is_not_ready(health, inference):
    inference.unready.add(MODEL)
    assert (await health.check(asked(MODEL), CALL)).status == NOT_SERVING
    assert (await health.check(asked(), CALL)).status == SERVING


async def test_an_unknown_name_is_not_found(health):
    with pytest.raises(RequestError, match="unknown service 'no'") as caught:
        await health.check(asked("no"), CALL)
    assert caught.value.fault is Fault.NOT_FOUND


async def test_watch_says_each_change_once(health, inference):
    async with aclosing(health.watch(asked(MODEL), CALL)) as watch:
        assert (await anext(watch)).status == SERVING
        following = asyncio.ensure_future(anext(watch))
        health.changed()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not following.done()
        inference.unready.add(MODEL)
        health.changed()
        assert (await following).status == NOT_SERVING
        del inference.manifests[MODEL]
        health.changed()
        assert (await anext(watch)).status == SERVICE_UNKNOWN


async def test_a_change_while_nobody_waits_is_not_lost(health, inference):
    async with aclosing(health.watch(asked(MODEL), CALL)) as watch:
        await anext(watch)
        inference.unready.add(MODEL)
        health.changed()
        assert (await anext(watch)).status == NOT_SERVING


async def test_draining_ends_watches_and_fails_checks(health):
    watch = health.watch(asked(), CALL)
    assert (await anext(watch)).status == SERVING
    health.drain()
    assert [reply.status async for reply in watch] == [NOT_SERVING]
    assert (await health.check(asked(MODEL), CALL)).status == NOT_SERVING


async def test_watches_are_bounded_and_give_their_place_back(health):
    first, second = (health.watch(asked(), CALL) for _ in range(2))
    await anext(first)
    await anext(second)
    with pytest.raises(RequestError, match="share of one caller is 2 of 4") as caught:
        await anext(health.watch(asked(), CALL))
    assert caught.value.fault is Fault.OVERLOADED
    await first.aclose()
    third = health.watch(asked(), CALL)
    assert (await anext(third)).status == SERVING
    await second.aclose()
    await third.aclose()
