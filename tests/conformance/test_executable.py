"""The executable itself, as outside suites run it: a process per command, told by its exit code."""

from __future__ import annotations

from tests.conformance.conftest import Client
from tests.conformance.publisher import Publisher


def test_init_refresh_and_download(client: Client, publisher: Publisher) -> None:
    client.executed = True
    publisher.add("a/file", b"content")
    publisher.refresh()
    assert client.init(publisher.files["metadata/1.root.json"]), client.said
    assert client.versions() == {"root": 1}
    assert client.refresh(), client.said
    assert set(client.versions()) == {"root", "timestamp", "snapshot", "targets"}
    assert client.download("a/file"), client.said
    assert client.downloaded() == [b"content"]


def test_a_refusal_is_exit_code_1_and_a_line(client: Client, publisher: Publisher) -> None:
    client.executed = True
    assert client.init(publisher.files["metadata/1.root.json"]), client.said
    publisher.refresh()
    older = dict(publisher.files)
    publisher.refresh()
    assert client.refresh(), client.said
    publisher.files.clear()
    publisher.files.update(older)
    for kept in ("timestamp", "snapshot"):
        (client.trusted / f"{kept}.json").unlink()  # the floors remember
    assert not client.refresh()
    assert client.said.count("\n") == 1
    assert not client.download("missing")
