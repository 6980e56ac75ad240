"""Requests that are carried out once: what is kept, on both databases, wherever the controller is killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from fleet.controller.access import Role
from fleet.controller.audit import Head
from fleet.controller.control.idempotency import KeyedAnswer, KeyedAnswers, KeyedRequest
from fleet.controller.control.settings import RequestSettings
from fleet.controller.control.tokens import WantedToken, holding, make_token
from fleet.controller.database import audit, idempotency, tokens
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.idempotency import Key
from fleet.controller.database.place import read_place
from fleet.controller.problems import ProblemError
from gateway.common.domain.errors import RequestError
from tests.simulators import databases
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, database
from tests.simulators.dying import die_at, died

__all__ = ("database",)
SECRET = "eft_of-the-caller"  # a test's
SETTINGS = settings_with(RequestSettings(), idempotency_kept_h=1.0, idempotency_keys_per_caller=3)
POINTS_LIMIT = 100


def caller(opened: Database) -> int:
    """Create a token and return its id."""
    credential, given = new_credential("eft_"), {"name": "ann", "role": Role.ADMIN}
    with opened.write() as connection:
        expires = NOW + timedelta(days=365)
        return tokens.create(connection, credential, opened.settings, **given, expires=expires, now=NOW, by="the test")


def asked(token: int, key: str = "k", request: str = "r") -> KeyedRequest:
    return KeyedRequest(Key(token, key), request, SECRET)


def making(opened: Database, name: str = "ben") -> Callable[[], KeyedAnswer]:
    """Return a request that makes a token, and answers with its secret."""

    def work() -> KeyedAnswer:
        credential, _ = make_token(opened, WantedToken(name, Role.VIEWER), "ann", NOW)
        return KeyedAnswer(201, credential.text.encode())

    return work


def named(opened: Database, name: str = "ben") -> int:
    with opened.read() as connection:
        return sum(token.name == name for token in holding(connection, opened.settings, NOW))


def test_a_repeat_is_answered_and_nothing_is_done(database) -> None:
    answers, mine = KeyedAnswers(database, SETTINGS), asked(caller(database))
    first = answers.once(mine, making(database), NOW)
    again = KeyedAnswers(database, SETTINGS).once(mine, making(database), NOW)  # as another replica, or after a restart
    assert (first.body, first.repeated) == (again.body, not again.repeated)
    assert named(database) == 1


def test_another_request_is_refused(database) -> None:
    answers, token = KeyedAnswers(database, SETTINGS), caller(database)
    answers.once(asked(token), making(database), NOW)
    with pytest.raises(ProblemError) as refused:
        answers.once(asked(token, request="another"), making(database, "eve"), NOW)
    assert (refused.value.problem.status, named(database, "eve")) == (422, 0)


def test_what_is_refused_after_it_wrote_is_undone_with_its_key(database) -> None:
    answers, mine = KeyedAnswers(database, SETTINGS), asked(caller(database))

    def failing() -> KeyedAnswer:
        making(database)()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        answers.once(mine, failing, NOW)
    assert named(database) == 0
    assert not answers.once(mine, making(database), NOW).repeated
    assert named(database) == 1


def test_a_write_that_is_refused_and_overcome_leaves_the_rest(database) -> None:
    def working() -> KeyedAnswer:
        making(database)()
        with pytest.raises(RequestError):
            making(database)()  # the name is taken
        return making(database, "eve")()

    KeyedAnswers(database, SETTINGS).once(asked(caller(database)), working, NOW)
    assert (named(database), named(database, "eve")) == (1, 1)


def test_effects_in_memory_wait_for_the_commit(database) -> None:
    seen: list[int] = []

    def working() -> KeyedAnswer:
        answer = making(database)()
        database.after_commit(lambda: seen.append(named(database)))
        assert seen == []
        return answer

    KeyedAnswers(database, SETTINGS).once(asked(caller(database)), working, NOW)
    database.after_commit(lambda: seen.append(-1))
    assert seen == [1, -1]


def test_a_first_request_that_another_replica_works_on(tmp_path: Path) -> None:
    with databases.made("postgresql", tmp_path) as opened:
        mine, other = asked(caller(opened)), KeyedAnswers(opened, SETTINGS)

        def slow() -> KeyedAnswer:
            answer = making(opened)()
            with pytest.raises(ProblemError) as refused:  # in another thread, for a unit is the thread's
                in_a_thread(lambda: other.once(mine, making(opened, "eve"), NOW))
            assert refused.value.problem.type == "/problems/request-in-progress"
            return answer

        assert KeyedAnswers(opened, SETTINGS).once(mine, slow, NOW).status == 201
        assert other.once(mine, making(opened, "eve"), NOW).repeated
        assert named(opened, "eve") == 0


def in_a_thread(work: Callable[[], object]) -> None:
    """Run `work` in a thread of its own, and raise what it raises."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result(60)


def test_what_is_kept_is_bounded_by_age_and_number(database) -> None:
    answers, token = KeyedAnswers(database, SETTINGS), caller(database)
    for number in range(5):
        answers.once(asked(token, f"k{number}"), making(database, f"t{number}"), NOW + timedelta(seconds=number))
    with database.read() as connection:
        kept = [number for number in range(5) if idempotency.find(connection, Key(token, f"k{number}"))]
    assert kept == [2, 3, 4]
    later = NOW + timedelta(hours=1, seconds=3)
    assert answers.once(asked(token, "k4"), making(database, "x"), later).repeated
    with database.write() as connection:
        assert idempotency.forget(connection, NOW + timedelta(seconds=3)) == 1
    assert not answers.once(asked(token, "k2"), making(database, "y"), later).repeated
    with database.write() as connection:
        assert idempotency.forget(connection, later) == 2
        tokens.forget(connection, NOW + timedelta(days=1000))  # and with it what it asked for
        assert connection.exec_driver_sql("SELECT count(*) FROM idempotency_keys").scalar_one() == 0


def test_an_answer_is_for_the_secret_that_sealed_it(database) -> None:
    answers, token = KeyedAnswers(database, SETTINGS), caller(database)
    answers.once(asked(token), making(database), NOW)
    with pytest.raises(RequestError, match="cannot be read"):
        answers.once(KeyedRequest(Key(token, "k"), "r", "another secret"), making(database), NOW)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", databases.KINDS)
def test_killed_anywhere_it_is_done_and_remembered_or_neither(kind: str, tmp_path: Path) -> None:
    """The kill comes before each statement and each commit of a request; the repeat then does what is left."""
    found = set()
    with databases.url(kind, tmp_path) as text:
        with closing(open_database(read_place(text, tmp_path))) as opened:
            mine = asked(caller(opened))
        for point in itertools.count(1):
            assert point < POINTS_LIMIT
            with databases.copied(kind, text) as copied:
                was_killed = died(partial(_asked_once, copied, mine, point, tmp_path))
                found.add(_consistent(copied, mine, tmp_path, was_killed=was_killed))
            if not was_killed:
                break
    assert point > 10
    assert found == {(True, False), (False, True)}


def _asked_once(text: str, mine: KeyedRequest, point: int, folder: Path) -> None:
    opened = open_database(read_place(text, folder))
    die_at(opened, point)
    KeyedAnswers(opened, SETTINGS).once(mine, making(opened), NOW)


def _consistent(text: str, mine: KeyedRequest, folder: Path, *, was_killed: bool) -> tuple[bool, bool]:
    """Return whether it was killed, and whether it was done; check that the key agrees, and that a repeat ends well."""
    with closing(open_database(read_place(text, folder))) as opened:
        with opened.read() as connection:
            kept = idempotency.find(connection, mine.key) is not None
        done = named(opened) == 1
        assert done == kept
        again = KeyedAnswers(opened, SETTINGS).once(mine, making(opened), NOW)
        assert (again.repeated, again.status, named(opened)) == (done, 201, 1)
        with opened.read() as connection:
            assert isinstance(audit.verify(connection, opened.settings), Head)
        return was_killed, done
