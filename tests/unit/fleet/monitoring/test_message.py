"""Messages to a webhook, verified by the library that the specification's authors publish."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from fleet.controller.database.alerts import Alert, AlertState, Untold
from fleet.controller.monitoring.message import CLOSED, OPENED, body, headers, message_id, read_secret, signature
from gateway.common.domain.errors import ConfigurationError

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
TEXT = "whsec_" + base64.b64encode(b"0123456789" * 4).decode()
ALERT = Alert("00f-abc", "silent", "camera-1", "", AlertState.OPEN, NOW, NOW, NOW, summary="härter", evidence={"a": 1})


def test_the_specifications_own_example() -> None:
    """Test vectors of the reference libraries."""
    secret = read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "file")
    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_whoever_has_the_secret_can_verify() -> None:
    now = datetime.now(UTC)
    untold = Untold(ALERT, OPENED)
    content = body(untold)
    sent = headers(untold, content, read_secret(TEXT + "\n", "file"), now)
    assert Webhook(TEXT).verify(content, dict(sent)) == json.loads(content)
    other = base64.b64encode(b"another secret of 24 bytes").decode()
    for secret, said in ((other, content), (TEXT, content + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(said, dict(sent))
    late = headers(untold, content, read_secret(TEXT, "file"), now - timedelta(minutes=6))
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(TEXT).verify(content, dict(late))


def test_the_document() -> None:
    assert json.loads(body(Untold(ALERT, OPENED))) == {
        "type": "alert.opened",
        "timestamp": "2027-03-01T12:00:00Z",
        "data": {
            "id": "00f-abc",
            "rule": "silent",
            "device": "camera-1",
            "subject": None,
            "state": "open",
            "since": "2027-03-01T12:00:00Z",
            "opened": "2027-03-01T12:00:00Z",
            "closed": None,
            "summary": "härter",
            "evidence": {"a": 1},
        },
    }


def test_one_change_has_one_id_and_one_content() -> None:
    assert message_id(Untold(ALERT, OPENED)) == "00f-abc-opened"
    assert message_id(Untold(ALERT, CLOSED)) == "00f-abc-closed"
    assert body(Untold(ALERT, OPENED)) == body(Untold(ALERT, OPENED))
    assert "webhook-signature" not in headers(Untold(ALERT, OPENED), b"", None, NOW)


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", "whsec_ä" + "A" * 40, "whsec_" + "A" * 200, "%" * 32])
def test_a_secret_that_is_none_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match="whsec_") as refused:
        read_secret(text, "alerts.secret")
    assert text[6:] not in str(refused.value) or len(text) <= 6
