"""The caller that a peer counts as."""

from __future__ import annotations

import pytest

from gateway.serving.frontends.peer import Peer


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Peer("camera", address="10.0.0.1"), Peer("camera", address="10.0.0.2"), True),
        (Peer("camera", address="10.0.0.1"), Peer(address="10.0.0.1"), False),
        (Peer(uid=1000, pid=1), Peer(uid=1000, pid=2), True),
        (Peer(uid=1000, pid=1), Peer(uid=0, pid=1), False),
        (Peer(address="10.0.0.1"), Peer(address="10.0.0.2"), False),
        (Peer(address="2001:db8:1:2::1"), Peer(address="2001:db8:1:2:ffff::9"), True),
        (Peer(address="2001:db8:1:2::1"), Peer(address="2001:db8:1:3::1"), False),
        (Peer(address="10.0.0.1"), Peer(address="::ffff:10.0.0.1"), True),
    ],
)
def test_connections_count_in_the_share_of_their_caller(one: Peer, other: Peer, same: bool) -> None:
    assert (one.share_key == other.share_key) is same
