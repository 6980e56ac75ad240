"""Page at `/`: models and links for people, without scripts; the server metadata for programs."""

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from itertools import islice
from typing import Any

from litestar import Request, Response, get

from gateway import __version__
from gateway.common.domain.errors import RequestError
from gateway.common.domain.rights import CAMERAS, METRICS, READ, Rights
from gateway.serving.domain.ports import IndexEntry
from gateway.serving.frontends.rest_v2.authorisation import rights_of
from gateway.serving.frontends.rest_v2.cameras import visible
from gateway.serving.frontends.rest_v2.requests import RestPorts
from gateway.serving.frontends.rest_v2.routes import metadata_of, ports_of
from gateway.serving.frontends.settings import SERVER_NAME

ROWS_SHOWN = 200
"""Most model versions on the page; the repository index has all."""
PROGRAMS, PEOPLE = "application/json", "text/html"
_STYLE = """
:root{color-scheme:light dark;--good:#1a7f37;--bad:#c9302c;--faint:#666}
@media(prefers-color-scheme:dark){:root{--good:#3fb950;--bad:#ff7b72;--faint:#999}}
body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h1 small{font-weight:400;color:var(--faint)}
table{border-collapse:collapse;width:100%;margin-bottom:1.5rem}
th,td{text-align:left;vertical-align:top;padding:.4rem 1rem .4rem 0}
tr{border-bottom:1px solid #8886}td{overflow-wrap:anywhere}
td:nth-child(4){min-width:8rem}td:first-child{min-width:7rem}ul{padding-left:1.2rem}
.state{font-weight:600;white-space:nowrap}.READY,.streaming{color:var(--good)}.UNAVAILABLE,.lost,.stalled{color:var(--bad)}
@media(max-width:45rem){thead{display:none}tr{display:block;padding:.5rem 0}td{display:block;padding:0}
td:empty{display:none}td[data-name]::before{content:attr(data-name)": ";color:var(--faint)}}
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_NO_MODEL = "No model. A model directory in the configured folder is served."
_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}
_COLUMNS = ("model", "version", "state", "variant", "accelerator", "reason")
_CAMERA_COLUMNS = ("camera", "model", "state", "answers", "reason")


@get("/", summary="Page for people", include_in_schema=False, opt={"needs": READ})
async def front_page(request: Request[Any, Any, Any]) -> Response[Any]:
    """Return the page to a client that prefers HTML, and the server metadata to all others."""
    ports = ports_of(request)
    if request.accept.best_match([PROGRAMS, PEOPLE]) != PEOPLE:
        return Response(metadata_of(ports), headers={"vary": "accept"})
    page = _page(ports, rights_of(request.scope["state"]))
    return Response(page.encode(), media_type=PEOPLE, headers=_HEADERS)


def _page(ports: RestPorts, rights: Rights) -> str:
    seen = [entry for entry in ports.repository.index() if rights.sees(entry.name)]
    state = "ready" if ports.inference.ready() else "not ready"
    rows = "\n".join(islice(_rows(ports, seen), ROWS_SHOWN))
    left = f"<p>… and {len(seen) - ROWS_SHOWN:,} more: POST /v2/repository/index lists all.</p>"
    cameras = "\n".join(map(_camera, visible(ports, rights) if rights.allows(CAMERAS) else ()))
    links = "\n".join(f'<li><a href="{path}">{path}</a>: {text}</li>' for path, text in _links(rights))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{SERVER_NAME}</title><style>{_STYLE}</style></head><body>
<h1>{SERVER_NAME} <small>{escape(__version__)}, {state}</small></h1>
{_table(_COLUMNS, rows or f'<tr><td colspan="{len(_COLUMNS)}">{_NO_MODEL}</td></tr>')}
{left if len(seen) > ROWS_SHOWN else ""}
{_table(_CAMERA_COLUMNS, cameras) if cameras else ""}
<ul>
{links}
</ul>
<p>Documentation, on the device: <code>man edge-gateway</code>, <code>edge-gateway --help</code>, and
<code>edge-gateway explain MODEL</code>, which says why a variant serves.</p>
</body></html>
"""


def _table(columns: tuple[str, ...], rows: str) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _camera(found: dict[str, Any]) -> str:
    """Return the row of a camera."""
    state, name = escape(found["state"]), escape(found["name"])
    size = f"{found['width']} × {found['height']}, " if found["width"] else ""
    rates = f"{size}{found['answered_per_s']:.1f} of {found['source_per_s']:.1f} frames/s"
    first = f'<td><b><a href="/v2/cameras/{name}">{name}</a></b></td>{_cell("model", found["model"])}'
    rest = "".join(map(_cell, _CAMERA_COLUMNS[3:], (rates, found["reason"])))
    return f'<tr>{first}<td class="state {state}">{state}</td>{rest}</tr>'


def _rows(ports: RestPorts, entries: list[IndexEntry]) -> Iterator[str]:
    for entry in entries:
        variant = accelerator = ""
        reason = entry.reason
        if entry.state == "READY":
            try:
                placed = ports.inference.placement(entry.name, entry.version)
            except RequestError:  # it was unloaded after the index was read
                continue
            variant, accelerator = placed.variant, " by ".join(filter(None, (placed.accelerator, placed.provider)))
            reason = "; ".join(filter(None, (placed.reason, entry.reason, placed.loop, placed.residency)))
        state = f'<td class="state {escape(entry.state)}">{escape(entry.state)}</td>'
        name, version = f"<td><b>{escape(entry.name)}</b></td>", _cell("version", entry.version)
        rest = "".join(map(_cell, _COLUMNS[3:], (variant, accelerator, reason)))
        yield f"<tr>{name}{version}{state}{rest}</tr>"


def _cell(name: str, text: str) -> str:
    return f'<td data-name="{name}">{escape(text)}</td>' if text else "<td></td>"


def _links(rights: Rights) -> Iterator[tuple[str, str]]:
    """Yield paths and what is there, of those that the caller may read."""
    yield "/schema/openapi.json", "every endpoint of this port, as OpenAPI"
    yield "/v2", "name, version and extensions (Open Inference Protocol)"
    yield "/v2/models", "models that are ready"
    yield "/v2/health/ready", "readiness, for supervisors"
    yield "/v2/health/live", "liveness, for supervisors"
    if rights.allows(CAMERAS):
        yield "/v2/cameras", "cameras of this gateway, and their pictures of events"
    if rights.allows(METRICS):
        yield "/metrics", "counters and gauges, for Prometheus"
