"""The publisher's folder of a controller, over its API: verbs that draft work on it as on their own folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tuf.api.metadata import TargetFile

from fleet.client.client import Client, Json, path_of, record_of
from fleet.disk import write_durably
from fleet.publisher.drafts import Draft, draft_document
from fleet.publisher.repository import METADATA, TIMESTAMP_FILE, metadata_file, target_file
from fleet.publisher.roles import ONLINE, ROOT, TARGETS, TIMESTAMP, role_paths
from fleet.publisher.settings import FleetSettings
from fleet.publisher.workspace import Advance, Workspace
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError
from gateway.common.domain.manifest import Artifact

REPOSITORY = "/repository/"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkspace(Workspace):
    """Copy of a controller's metadata and drafts in `folder`. What is staged and saved goes to the controller at once.

    `states`: the ETag of each draft that waited when the copy was made.
    """

    client: Client
    states: Mapping[str, str]

    @property
    def next_steps(self) -> str:
        """Return the next steps for a saved draft, for people."""
        return "edge-fleet drafts sign ROLE --key KEY where each key is, then edge-fleet publish --remote"

    def place(self, role: str) -> str:
        """Return the URL of a role's draft, for messages."""
        return f"{self.client.url}{path_of('drafts', role)}"

    def save(self, drafts: Iterable[Draft]) -> None:
        """Upload drafts; each replaces the one that it was based on, and no other."""
        for draft in drafts:
            state = self.states.get(draft.role, "")
            self.client.ask("PUT", path_of("drafts", draft.role), body=draft_document(draft), if_match=state)

    def stage(self, target: TargetFile, content: bytes) -> None:
        """Do nothing: drafts carry the content of their targets."""

    def stage_blob(self, source: Path, artifact: Artifact, advance: Advance = lambda _: None) -> None:
        """Upload a file of a release."""
        upload_file(self.client, source, artifact, advance)

    def target_content(self, target: TargetFile) -> bytes:
        """Return the content of a published target."""
        return self.client.fetch(f"{REPOSITORY}{target_file(target)}")[0]


@contextmanager
def remote_workspace(client: Client) -> Iterator[RemoteWorkspace]:
    """Copy what a controller has published and what waits there. Raise UnreachableError, RequestError."""
    with tempfile.TemporaryDirectory(prefix="edge-fleet-") as folder:
        copied = None
        for _ in range(client.settings.attempts):
            state = client.ask("GET", path_of("publication"))
            work = Workspace(Path(folder), record_of(FleetSettings, state["settings"]))
            if state["published"] == copied:
                break
            copied = state["published"]
            for name in map(_metadata_file, copied):
                write_durably(work.public / name, client.fetch(f"{REPOSITORY}{name}")[0])
        states = {}
        for entry in client.pages(path_of("drafts")):
            path = path_of("drafts", entry["role"], "file")
            document, states[entry["role"]] = client.fetch(path)
            write_durably(work.draft_file(entry["role"]), document)
        yield RemoteWorkspace(work.folder, work.settings, client=client, states=states)


def upload_file(client: Client, source: Path, artifact: Artifact, advance: Advance) -> None:
    """Upload a file in pieces. After a lost connection, continue after the bytes that the controller has.

    Raise UnreachableError, RequestError; ConfigurationError for a file that changed meanwhile.
    """
    path, failures = path_of("blobs", artifact.sha256), 0
    asked = {"digest": artifact.sha256, "size_bytes": artifact.size_bytes}
    state = client.ask("POST", path_of("blobs"), body=asked)
    advance(state["received_bytes"])
    with source.open("rb") as file:
        while not state["complete"]:
            offset = state["received_bytes"]
            file.seek(offset)
            piece = file.read(client.settings.piece_bytes)
            if not piece and offset < artifact.size_bytes:
                raise ConfigurationError("became shorter while it was sent; add the release again", file=str(source))
            try:
                state, failures = client.ask("PATCH", path, {"offset": offset}, piece), 0
            except UnreachableError:
                failures += 1
                if failures >= client.settings.attempts:
                    raise
                client.pause(failures)
                with suppress(UnreachableError):  # the controller still starts: the next PATCH fails, or is refused
                    state = client.ask("GET", path)
            except RequestError as error:
                state = _state_after(client, path, offset, error)
            advance(state["received_bytes"] - offset)


def _state_after(client: Client, path: str, offset: int, error: RequestError) -> Json:
    """Return the state of an upload after a refusal. Raise the refusal unless bytes were received."""
    try:
        state = client.ask("GET", path)
    except RequestError:
        raise error from None
    if state["received_bytes"] == offset:
        raise error
    return state


def _metadata_file(role: Json) -> str:
    """Return the path of a role's metadata. Raise ConfigurationError for a role that cannot exist."""
    name = str(role["role"])
    if name not in {ROOT, TARGETS, *ONLINE}:
        role_paths(name)
    return f"{METADATA}/{TIMESTAMP_FILE}" if name == TIMESTAMP else metadata_file(name, int(role["version"]))
