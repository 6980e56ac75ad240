"""Settings for devices: the next version, what is refused, and what their signers are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.publisher.device_settings import (
    COMPARED_LIMIT_LINES,
    check_tables,
    next_version,
    plan_settings,
    previous_settings,
    settings_path,
    settings_versions,
)
from fleet.publisher.drafts import Draft
from fleet.publisher.releases import plan_withdrawal
from fleet.publisher.roles import owner_role, role_paths
from fleet.publisher.signing import renew
from fleet.publisher.software import named_files
from fleet.publisher.wording import describe
from gateway.common.domain.assignment import RESERVED_SLOTS
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release_documents import read_release_document
from gateway.common.domain.routing import version_order
from gateway.common.domain.settings_layer import NEVER
from gateway.common.domain.settings_release import SETTINGS_LIMIT_BYTES
from gateway.common.trust.targets import Withdrawal
from tests.simulators.fleet_repository import FleetRepository

TEXT = "# Berlin\n[mqtt]\nkeepalive_s = 10\n"


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    """Return a repository that has published version 1 of the name `berlin`."""
    made = FleetRepository(tmp_path)
    made.add_settings("berlin", TEXT)
    return made


def draft(repository: FleetRepository, text: str, version: str | None = None, *, shown: bool = True) -> Draft:
    """Return a draft as `edge-fleet settings add` makes it; `shown`: with the document of version 1."""
    drafting = repository.drafting()
    path = settings_path(drafting, "berlin", version)
    before = repository.published.target("settings/berlin/1/release")
    assert before
    file = repository.public / f"targets/settings/berlin/1/{before.hashes['sha256']}.release"
    return plan_settings(drafting, path, text, None, [(before, file.read_bytes())] if shown else []).draft


def told(repository: FleetRepository, made: Draft) -> str:
    return "\n".join(describe(made, repository.keys["settings"][0].public_key))


@pytest.mark.parametrize(("slot", "kind"), RESERVED_SLOTS.items())
def test_each_reserved_slot_has_a_role_of_its_own(slot: str, kind: str) -> None:
    assert (owner_role(slot), role_paths(kind)) == (kind, [f"{kind}/*/*/*"])


@pytest.mark.parametrize(
    ("versions", "expected"),
    [((), "1"), (("1",), "2"), (("9", "10"), "11"), (("2.5",), "3"), (("2", "beta"), "3"), (("beta",), "1")],
)
def test_the_next_version_is_the_next_whole_number(versions: tuple[str, ...], expected: str) -> None:
    assert next_version(versions) == expected


@given(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)))
def test_the_next_version_is_newer_than_all(versions: list[str]) -> None:
    made = next_version(versions)
    assert all(version_order(one) < version_order(made) for one in versions)


def test_drafted_versions_count_as_published_ones(repository: FleetRepository) -> None:
    repository.workspace.save([draft(repository, TEXT)])
    assert settings_path(repository.drafting(), "berlin", None).version == "3"
    assert settings_path(repository.drafting(), "munich", None).version == "1"


def test_each_name_has_its_own_versions(repository: FleetRepository) -> None:
    for text, version in (("", "10"), ("[mqtt]\n", "9.1")):
        repository.add_settings("berlin", text, version)
    repository.add_settings("berlin-2", "", "11")
    targets = repository.published.roles["settings"].signed
    assert settings_versions(targets, "berlin") == ["1", "9.1", "10"]
    assert previous_settings(targets, "berlin", "10").path == "settings/berlin/9.1/release"
    assert previous_settings(targets, "berlin", "9.1").path == "settings/berlin/1/release"
    assert previous_settings(targets, "berlin", "1") is None
    assert previous_settings(None, "berlin", "1") is None


def test_a_document_reads_back_and_names_no_files(repository: FleetRepository) -> None:
    content = draft(repository, TEXT).documents["settings/berlin/2/release"]
    release = read_release_document("settings/berlin/2/release", content)
    assert (release.target, release.toml, release.floor) == ("settings/berlin/2/release", TEXT, "1")
    assert named_files(release) == ()


@pytest.mark.parametrize(
    ("text", "version", "floor", "said"),
    [
        (TEXT, "1", None, "settings/berlin/1/release is published already and never changes; name another --version"),
        (TEXT, "0", None, "version 0 is below the floor 1"),
        (TEXT, "2", "3", "version 2 is below the floor 3"),
        ("#" * SETTINGS_LIMIT_BYTES, "2", None, f"at most {SETTINGS_LIMIT_BYTES} are read"),
        ("[mqtt", "2", None, "not valid TOML"),
    ],
)
def test_what_devices_could_not_take_is_not_drafted(
    repository: FleetRepository, text: str, version: str, floor: str | None, said: str
) -> None:
    drafting = repository.drafting()
    with pytest.raises(ConfigurationError, match=said):
        plan_settings(drafting, settings_path(drafting, "berlin", version), text, floor)


@pytest.mark.parametrize("table", sorted(NEVER))
def test_tables_that_never_come_from_a_fleet_are_refused(table: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^site\.toml: {table}: never comes from a fleet"):
        check_tables(f"[mqtt]\n[{table}]\nx = 1\n", "site.toml")


def test_settings_are_shown_in_full_and_compared_with_those_before(repository: FleetRepository) -> None:
    text = "# Berlin\n\n[mqtt]\nkeepalive_s = 20\n"
    said = told(repository, draft(repository, text))
    assert "  adds settings/berlin/2/release: berlin 2, floor 1, released " in said
    full = "    | # Berlin\n    | \n    | [mqtt]\n    | keepalive_s = 20\n"
    assert f"{full}    compared with settings/berlin/1/release:\n    @@ -1,3 +1,4 @@\n" in said
    assert "    -keepalive_s = 10\n    +keepalive_s = 20\n" in said
    assert "REFUSE" not in said


def test_a_comparison_says_what_is_compared_or_nothing(repository: FleetRepository) -> None:
    assert "compared with settings/" not in told(repository, draft(repository, TEXT, shown=False))
    assert "compared with settings/berlin/1/release:\n    nothing differs" in told(repository, draft(repository, TEXT))
    long = told(repository, draft(repository, "\n" * (COMPARED_LIMIT_LINES + 2)))
    assert f"not shown: more than {COMPARED_LIMIT_LINES} lines" in long


def test_a_drafted_version_is_compared_with_a_drafted_one(repository: FleetRepository) -> None:
    repository.workspace.save([draft(repository, "[mqtt]\nkeepalive_s = 11\n")])
    said = told(repository, draft(repository, "[mqtt]\nkeepalive_s = 12\n", shown=False))
    assert "compared with settings/berlin/2/release" in said
    assert "    -keepalive_s = 11\n    +keepalive_s = 12" in said


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[mqtt]\nurl = 'mqtt://x'\nkeepalive_s = 1", "mqtt.url", "DEVICES REFUSE THESE SETTINGS unless a policy"),
        ("[auth]", "auth", "DEVICES REFUSE THESE SETTINGS unless a policy"),
        ("[fleet]\nsettings = false", "fleet.settings", "NO DEVICE TAKES SETTINGS WITH THIS KEY"),
    ],
)
def test_keys_that_devices_refuse_are_marked(repository: FleetRepository, text: str, key: str, words: str) -> None:
    said = told(repository, draft(repository, text))
    assert f"\n    {key}: {words}" in said
    assert said.count("DEVICE") == 1


def test_settings_that_set_nothing_say_so(repository: FleetRepository) -> None:
    assert "SETS NOTHING: devices go back to their own files" in told(repository, draft(repository, "# none\n"))


def test_settings_steer_no_terminal_and_look_like_nothing_else(repository: FleetRepository) -> None:
    made = draft(repository, "x = '''\nmodels/acme/x/1/release\u202e\n'''\n")
    lines = describe(made, repository.keys["settings"][0].public_key)
    assert all(line.isprintable() for line in lines)
    assert [line[4] for line in lines if "acme" in line] == ["|", "+"]


def test_paths_of_another_form_do_not_stop_a_signer(repository: FleetRepository) -> None:
    """A draft's sender may list anything."""
    made = draft(repository, TEXT)
    targets = made.metadata.signed.targets
    targets["settings/berlin/1/x/release"] = targets["settings/berlin/1/release"]
    assert "settings/berlin/2/release: berlin 2" in told(repository, made)


def test_a_withdrawal_of_any_kind_is_drafted_for_its_role(repository: FleetRepository) -> None:
    made = plan_withdrawal(repository.drafting(), "settings/berlin/1/release", Withdrawal.OFFER)
    assert made.role == "settings"
    said = told(repository, made)
    assert "withdraws settings/berlin/1/release: devices no longer install it; those that run it keep it" in said


def test_a_renewal_shows_no_settings(repository: FleetRepository) -> None:
    assert "nothing changes but the version" in told(repository, renew(repository.drafting(), "settings"))
