"""The page at `/`, as browsers and programs get it."""

import base64
import hashlib
import re

import pytest

from gateway.common.domain.access import Security, read_tokens
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.ports import IndexEntry
from gateway.serving.frontends.rest_v2.page import ROWS_SHOWN
from tests.simulators.inference import SimulatedInference, identity
from tests.simulators.rest_gateway import serving

pytestmark = pytest.mark.asyncio
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
HOSTILE = "<script>alert('x')</script>&\""


async def test_a_browser_gets_models_and_links() -> None:
    simulated = SimulatedInference([identity(Datatype.FP32), identity(Datatype.INT8)])
    simulated.unready.add("identity_int8")
    async with serving(inference=simulated) as gateway:
        answer = await gateway.client.get("/", headers=BROWSER)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for text in ("identity_fp32", "READY", "identity_int8", "UNAVAILABLE"):
            assert text in answer.text
        links = re.findall(r'href="([^"]+)"', answer.text)
        assert {"/schema/openapi.json", "/metrics", "/v2/health/ready"} <= set(links)
        for link in links:
            assert (await gateway.client.get(link)).status_code == 200, link


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/html;q=0.5", "text/plain", ""])
async def test_a_program_gets_the_server_metadata(accept: str) -> None:
    async with serving() as gateway:
        answer = await gateway.client.get("/", headers={"accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == (await gateway.client.get("/v2")).json()
        assert answer.headers["vary"] == "accept"


async def test_the_page_may_load_and_run_nothing() -> None:
    async with serving() as gateway:
        answer = await gateway.client.get("/", headers=BROWSER)
    policy = answer.headers["content-security-policy"]
    (style,) = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script|style=|src=|url\(|https?:", answer.text)


class Hostile(SimulatedInference):
    """Index whose names and reasons are markup, of more lines than the page shows."""

    lines = 1

    def index(self) -> list[IndexEntry]:
        return [IndexEntry(HOSTILE, HOSTILE, "UNAVAILABLE", HOSTILE)] * self.lines


async def test_names_and_reasons_are_text() -> None:
    async with serving(inference=Hostile()) as gateway:
        page = (await gateway.client.get("/", headers=BROWSER)).text
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;") == 3


async def test_the_page_is_bounded() -> None:
    simulated = Hostile()
    simulated.lines = ROWS_SHOWN + 1234
    async with serving(inference=simulated) as gateway:
        page = (await gateway.client.get("/", headers=BROWSER)).text
    assert page.count("<tr><td><b>") == ROWS_SHOWN
    assert "… and 1,234 more" in page


async def test_an_empty_gateway_says_so() -> None:
    simulated = Hostile()
    simulated.lines = 0
    async with serving(inference=simulated) as gateway:
        assert "No model" in (await gateway.client.get("/", headers=BROWSER)).text


async def test_rights_hide_models_links_and_the_page() -> None:
    lines = ("one one-secret models=identity_fp32 scopes=infer", "counts counts-secret scopes=metrics")
    async with serving(security=Security(tokens=read_tokens("\n".join(lines), "tokens"))) as gateway:
        one, counts = ({**BROWSER, "authorization": f"Bearer {name}-secret"} for name in ("one", "counts"))
        page = (await gateway.client.get("/", headers=one)).text
        assert "identity_fp32" in page
        assert "identity_int8" not in page
        assert "/metrics" not in page
        for headers, status, words in ((counts, 403, "lacks the scope infer"), (BROWSER, 401, "token")):
            refused = await gateway.client.get("/", headers=headers)
            assert (refused.status_code, words in refused.json()["error"]) == (status, True)
