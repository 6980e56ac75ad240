"""Text that a key holder sees before signing comes from what is signed, however the draft was changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata

from fleet.publisher import signing
from fleet.publisher.drafts import Draft
from fleet.publisher.releases import Terms, plan_release, plan_withdrawal, read_model, target_of
from fleet.publisher.settings import FleetSettings
from fleet.publisher.wording import describe
from gateway.common.trust.targets import Withdrawal
from tests.simulators.fleet_repository import FleetRepository, new_key

MODEL = Path(__file__).parents[3] / "models" / "activity" / "1"


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    made = FleetRepository(tmp_path)
    made.add_release("reader", "1")
    return made


def told(draft: Draft, signer) -> str:
    return "\n".join(describe(draft, signer.public_key))


def test_a_release_is_told_in_words(repository: FleetRepository) -> None:
    planned = plan_release(repository.drafting(), read_model(MODEL, FleetSettings()), "acme", Terms())
    text = told(planned.draft, repository.keys["models-acme"][0])
    assert text.startswith("models-acme, version 2, valid until ")
    assert "compared with version 1, which this key signed" in text
    assert "adds models/acme/activity/1/release: activity 1, floor 1, variants onnx-fp32, " in text
    assert f"sha256 {planned.target.hashes['sha256']}" in text
    assert "reader" not in text
    assert "1 of acme-0: not signed, 1 more needed" in text


def test_a_version_before_that_this_key_did_not_sign_hides_nothing(repository: FleetRepository) -> None:
    """A sender could invent one that holds the bad release already."""
    planned = plan_release(repository.drafting(), read_model(MODEL, FleetSettings()), "acme", Terms())
    invented = Metadata(planned.draft.metadata.signed)
    invented.sign(new_key())
    text = told(replace(planned.draft, previous=invented), repository.keys["models-acme"][0])
    assert "in full, because this key did not sign the version before" in text
    assert "adds models/acme/activity/1/release" in text
    assert "adds models/acme/reader/1/release" in text


def test_nor_does_one_that_somebody_signed_under_this_keys_id(repository: FleetRepository) -> None:
    planned = plan_release(repository.drafting(), read_model(MODEL, FleetSettings()), "acme", Terms())
    holder, sender = repository.keys["models-acme"][0], new_key()
    sender.public_key.keyid = holder.public_key.keyid
    invented = Metadata(planned.draft.metadata.signed)
    invented.sign(sender)
    quorum = replace(planned.draft.quorums[0], keys=(sender.public_key,))
    draft = replace(planned.draft, previous=invented, quorums=(quorum,))
    assert "adds models/acme/activity/1/release" in told(draft, holder)


def test_a_document_that_is_no_release_stands_out(repository: FleetRepository) -> None:
    target = target_of("models/acme/x/1/release", b"{}", {"floor": "1"})
    draft = signing.add_targets(repository.drafting(), "models-acme", [(target, b"{}")])
    assert "WHICH IS NO RELEASE" in told(draft, repository.keys["models-acme"][0])


def test_a_policy_is_told_as_it_is(repository: FleetRepository) -> None:
    content = b'{"schema": 1,\n "share_percent_per_hour": 10}\n'
    draft = signing.add_targets(repository.drafting(), "policy", [(target_of("policy/hours.json", content), content)])
    text = told(draft, repository.keys["policy"][0])
    assert f"adds policy/hours.json, {len(content)} bytes, sha256 " in text
    assert '  | {"schema": 1,\n    |  "share_percent_per_hour": 10}\n' in text
    assert "WHICH NO DEVICE" not in text


def test_a_policy_says_which_settings_it_permits(repository: FleetRepository) -> None:
    content = b'{"schema": 1, "settings": ["mqtt.url", "grpc"]}'
    draft = signing.add_targets(repository.drafting(), "policy", [(target_of("policy/hours.json", content), content)])
    said = told(draft, repository.keys["policy"][0])
    assert "\n    PERMITS the fleet's settings to change mqtt.url, grpc\n" in said


@pytest.mark.parametrize("content", [b'{"schema": 2}', b"\xff", b'{"schema": 1, "sharing": 1}'])
def test_a_policy_that_no_device_can_read_stands_out(repository: FleetRepository, content: bytes) -> None:
    draft = signing.add_targets(repository.drafting(), "policy", [(target_of("policy/hours.json", content), content)])
    assert "WHICH NO DEVICE CAN READ (" in told(draft, repository.keys["policy"][0])


def test_a_profile_steers_no_terminal(repository: FleetRepository) -> None:
    content = b'name = "lab"  # \x1b[2J\r hidden'
    draft = signing.add_targets(repository.drafting(), "profiles", [(target_of("profiles/lab.toml", content), content)])
    lines = describe(draft, repository.keys["profiles"][0].public_key)
    assert any("name =" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_new_keys_of_root_are_told_beside_the_old(repository: FleetRepository) -> None:
    new = [new_key(name).public_key for name in ("ann", "ben")]
    old = [signer.public_key for signer in repository.keys["root"]]

    def listed(keys) -> str:
        return ", ".join(f"{key.unrecognized_fields['x-edge-name']} ({key.keyid[:16]})" for key in keys)

    (draft,) = signing.rotate(repository.drafting(), "root", new, 2)
    text = told(draft, repository.keys["root"][0])
    assert f"root: 2 of {listed(new)} (before: 2 of {listed(old)})" in text
    assert "timestamp:" not in text
    assert "the keys of root as published: 2 of root-0, root-1, root-2: not signed, 2 more needed" in text
    assert "its new keys: 2 of ann, ben: not signed, 2 more needed" in text


def test_a_delegation_is_told_with_its_paths(repository: FleetRepository) -> None:
    key = new_key("nina").public_key
    (draft,) = signing.delegate(repository.drafting(), "models-new", [key], 1)
    text = told(draft, repository.keys["targets"][0])
    assert f"models-new, for models/new/*/*/*: 1 of nina ({key.keyid[:16]})" in text
    assert "models-acme" not in text


def test_a_renewal_says_that_nothing_changes(repository: FleetRepository) -> None:
    text = told(signing.renew(repository.drafting(), "models-acme"), repository.keys["models-acme"][0])
    assert "nothing changes but the version and the time it is valid" in text


def test_what_is_removed_or_replaced_is_told(repository: FleetRepository) -> None:
    draft = signing.renew(repository.drafting(), "models-acme")
    target = draft.metadata.signed.targets.pop("models/acme/reader/1/release")
    assert "removes models/acme/reader/1/release" in told(draft, repository.keys["models-acme"][0])
    target.unrecognized_fields["custom"] = {"floor": "0"}
    draft.metadata.signed.targets[target.path] = target
    text = told(draft, repository.keys["models-acme"][0])
    assert "replaces models/acme/reader/1/release" in text


def test_who_signed_is_told(repository: FleetRepository) -> None:
    draft = signing.renew(repository.drafting(), "root")
    draft = signing.signed_with(draft, repository.keys["root"][1])
    assert "signed by root-1, 1 more needed" in told(draft, repository.keys["root"][0])


def test_nothing_in_a_draft_steers_the_terminal(repository: FleetRepository) -> None:
    key = new_key("ann\x1b[2J\u202eevil\nsigned by everybody").public_key
    (draft,) = signing.delegate(repository.drafting(), "models-new", [key], 1)
    text = told(draft, repository.keys["targets"][0])
    assert "ann\\x1b[2J\\u202eevil\\nsigned by everybody" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_what_a_floor_bars_is_named(repository: FleetRepository) -> None:
    repository.add_release("reader", "2")
    model = repository.workspace.folder / "made" / "acme" / "reader" / "2"
    text = (model / "manifest.toml").read_text().replace('version = "2"', 'version = "3"')
    (model / "manifest.toml").write_text(text)
    planned = plan_release(repository.drafting(), read_model(model, FleetSettings()), "acme", Terms("2"))
    said = told(planned.draft, repository.keys["models-acme"][0])
    assert "BARS models/acme/reader/1/release by its floor" in said
    assert "BARS models/acme/reader/2" not in said


@pytest.mark.parametrize(
    ("withdrawal", "words"), [("offer", "those that run it keep it"), ("remove", "STOPS IT AT ONCE")]
)
def test_a_withdrawal_says_what_devices_do(repository: FleetRepository, withdrawal: str, words: str) -> None:
    path = "models/acme/reader/1/release"
    draft = plan_withdrawal(repository.drafting(), path, Withdrawal(withdrawal))
    assert f"withdraws {path}: " in (said := told(draft, repository.keys["models-acme"][0]))
    assert words in said


def test_the_owners_terms_are_told(repository: FleetRepository) -> None:
    terms = Terms(slots=("porch", "yard"), changes_signature=True)
    planned = plan_release(repository.drafting(), read_model(MODEL, FleetSettings()), "acme", terms)
    said = told(planned.draft, repository.keys["models-acme"][0])
    assert "for the slots porch, yard, WITH OTHER INPUTS OR OUTPUTS than other versions" in said
