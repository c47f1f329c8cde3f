"""Writing: durable when it returns, one caller's failure is no other's, every caller gets an answer."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from trainshed.store import settings
from trainshed.store.database import Database, DatabaseFull, DatabaseUnavailable
from trainshed.store.schema import migrate
from trainshed.store.tables import meta

WRITERS, WRITES = 16, 25


def put(key: str, value: str = "x"):
    return lambda connection: settings.put(connection, key, value)


def keys(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.execute(select(meta.c.key)).scalars())


def test_a_write_is_seen_by_every_reader_once_it_returned(database):
    database.write(put("a", "1"))
    with database.read() as connection:
        assert settings.get(connection, "a") == "1"
    with database.snapshot() as connection:
        assert settings.get(connection, "a") == "1"


def test_a_write_answers_what_its_work_answers(database):
    assert database.write(lambda _: {"some": "thing"}) == {"some": "thing"}


def test_writes_of_many_threads_all_arrive(database):
    def work(writer: int) -> None:
        for number in range(WRITES):
            database.write(put(f"{writer}-{number}"))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))
    assert keys(database) >= {f"{w}-{n}" for w in range(WRITERS) for n in range(WRITES)}


def test_a_failing_write_undoes_its_own_statements_and_no_others(database):
    def half_done(connection):
        settings.put(connection, "half", "1")
        raise LookupError("in the middle")

    def work(number: int) -> str:
        try:
            database.write(half_done if number % 3 == 0 else put(f"good-{number}"))
        except LookupError:
            return "refused"
        return "done"

    with ThreadPoolExecutor(WRITERS) as pool:
        answers = list(pool.map(work, range(60)))
    assert answers == ["refused" if n % 3 == 0 else "done" for n in range(60)]
    assert "half" not in keys(database)
    assert keys(database) >= {f"good-{n}" for n in range(60) if n % 3}


def test_a_broken_constraint_reaches_its_caller_and_nobody_else(database):
    database.write(put("taken"))
    with pytest.raises(IntegrityError):
        database.write(lambda c: c.execute(insert(meta).values(key="taken", value="again")))
    database.write(put("after"))
    assert "after" in keys(database)


def test_a_write_that_loses_a_race_for_a_key_runs_again_and_sees_the_winner(database):
    """Two transactions that both find nothing and both insert: the second must look again."""
    both_looked = threading.Barrier(2)

    def claim(name: str):
        first = [True]

        def work(connection):
            holder = settings.get(connection, "place")
            if holder is None:
                if first.pop() and database.dialect == "postgresql":
                    both_looked.wait(10)
                connection.execute(insert(meta).values(key="place", value=name))
                return name
            return holder

        return work

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda name: database.write(claim(name)), ["one", "two"]))
    assert len(set(answers)) == 1


def test_listeners_hear_of_a_commit_after_it_happened(database):
    seen: list[bool] = []
    database.on_write(lambda: seen.append("heard" in keys(database)))
    database.write(put("heard"))
    with pytest.raises(ValueError, match="no"):
        database.write(_refuse)
    assert seen == [True]


def _refuse(_connection):
    raise ValueError("no")


def test_closing_finishes_what_was_asked_and_answers_every_later_caller(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'd'}")
    migrate(database.engine)
    started = threading.Event()
    answers: list[str] = []

    def write_until_closed() -> None:
        number = 0
        while True:
            try:
                database.write(put(f"{threading.get_ident()}-{number}"))
            except DatabaseUnavailable:
                answers.append("closed")
                return
            started.set()
            number += 1

    threads = [threading.Thread(target=write_until_closed) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert started.wait(20)
    database.close()
    database.close()
    for thread in threads:
        thread.join(20)
    assert answers == ["closed"] * 8


CHILD = """
import os, signal, sys
from trainshed.store import settings
from trainshed.store.database import Database
database = Database(sys.argv[1])
database.write(lambda c: settings.put(c, "before", "1"))
def die(connection):
    settings.put(connection, "during", "1")
    os.kill(os.getpid(), signal.SIGKILL)
database.write(die)
"""


def test_P1_an_answered_write_survives_a_kill_and_an_unanswered_one_leaves_nothing(database_url):
    done = subprocess.run([sys.executable, "-c", CHILD, database_url], check=False, timeout=60)
    assert done.returncode == -9
    database = Database(database_url)
    assert "before" in keys(database)
    assert "during" not in keys(database)
    database.close()


def test_P1_the_embedded_database_flushes_every_commit(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'd'}")
    full = 2
    with database.read() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == full
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
    database.close()


def test_a_statement_that_the_database_does_not_know_is_no_outage_of_it(database):
    with pytest.raises((OperationalError, ProgrammingError), match="nowhere"):
        database.write(lambda c: c.execute(text("INSERT INTO nowhere VALUES (1)")))
    with pytest.raises((OperationalError, ProgrammingError), match="nowhere"), database.read() as connection:
        connection.execute(text("SELECT * FROM nowhere"))
    database.write(put("still here"))


def test_a_value_that_the_database_cannot_hold_is_no_outage_of_it(postgres):
    url = postgres.create_database("values")
    database = Database(url)
    try:
        database.write(lambda c: c.execute(text("CREATE TABLE t (v text PRIMARY KEY)")))
        random = "".join(chr(33 + byte % 90) for byte in os.urandom(20_000))
        for value in ("a\0b", random):  # PostgreSQL holds no NUL, and no index row of 20 kB
            with pytest.raises(DBAPIError):
                database.write(lambda c, v=value: c.execute(text("INSERT INTO t VALUES (:v)"), {"v": v}))
    finally:
        database.close()
        postgres.drop_database("values")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_file_that_was_moved_away_is_noticed_and_not_made_anew(tmp_path, *, replaced: bool):
    path = tmp_path / "db.sqlite"
    database = Database(f"sqlite:///{path}")
    migrate(database.engine)
    database.write(put("before"))
    database.check_file()
    path.rename(tmp_path / "away.sqlite")
    if replaced:
        path.touch()
    with pytest.raises(DatabaseUnavailable, match="moved or replaced"):
        database.check_file()
    with pytest.raises(DatabaseUnavailable, match="moved or replaced"):
        database.write(put("lost"))
    # As soon as the pool has no connection left, one would have to be made.
    with pytest.raises(DatabaseUnavailable):
        _read_at_once(database, 3)
    assert path.exists() is replaced
    (tmp_path / "away.sqlite").rename(path)
    database.write(put("after"))
    assert keys(database) >= {"before", "after"}
    database.close()


def _read_at_once(database: Database, connections: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(database.read())


FULL = """
import resource, signal, sys
from trainshed.store import settings
from trainshed.store.database import Database, DatabaseFull
database = Database(sys.argv[1])
database.write(lambda c: settings.put(c, "small", "1"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    database.write(lambda c: settings.put(c, "large", "x" * 50_000_000))
except Exception as error:
    print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
database.write(lambda c: settings.put(c, "later", "1"))
database.close()
"""


def test_a_write_that_finds_no_room_is_refused_whole_and_later_ones_work(tmp_path):
    """The file size limit stands in for a full disk: the kernel refuses the same write calls."""
    url = f"sqlite:///{tmp_path / 'd'}"
    database = Database(url)
    migrate(database.engine)
    database.close()
    limit = 4 * 1024 * 1024
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL, url, str(limit)], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.strip() in {DatabaseFull.__name__, DatabaseUnavailable.__name__}
    database = Database(url)
    assert {"small", "later"} <= keys(database)
    assert "large" not in keys(database)
    database.close()


def test_a_full_disk_is_told_apart_from_a_database_that_does_not_answer(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'd'}")
    migrate(database.engine)
    with database.engine.connect() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()

    def fill(connection):
        connection.execute(text(f"PRAGMA max_page_count = {pages + 1}"))
        settings.put(connection, "large", "x" * 5_000_000)

    with pytest.raises(DatabaseFull, match="full"):
        database.write(fill)
    assert "large" not in keys(database)
    database.close()


def test_a_full_disk_refuses_the_large_write_of_a_group_and_keeps_the_small_ones(tmp_path):
    """SQLite undoes the whole transaction when the disk is full; the innocent writes are made again."""
    database = Database(f"sqlite:///{tmp_path / 'd'}")
    migrate(database.engine)
    inside, leave = threading.Event(), threading.Event()

    def hold(connection):
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
        connection.execute(text(f"PRAGMA max_page_count = {pages + 20}"))
        inside.set()
        assert leave.wait(20)

    with ThreadPoolExecutor(12) as pool:
        pool.submit(database.write, hold)
        assert inside.wait(20)
        small = [pool.submit(database.write, put(f"small-{n}")) for n in range(5)]
        large = pool.submit(database.write, put("large", "x" * 5_000_000))
        small += [pool.submit(database.write, put(f"small-{n}")) for n in range(5, 10)]
        leave.set()
        assert isinstance(large.exception(20), DatabaseFull)
        assert [future.exception(20) for future in small] == [None] * 10
    assert {f"small-{n}" for n in range(10)} <= keys(database)
    assert "large" not in keys(database)
    database.close()


def test_a_snapshot_shows_one_committed_state_while_others_write(database):
    database.write(put("n", "1"))
    with database.snapshot() as connection:
        assert settings.get(connection, "n") == "1"
        database.write(put("n", "2"))
        assert settings.get(connection, "n") == "1"
    with database.read() as connection:
        assert settings.get(connection, "n") == "2"


def test_a_reader_is_not_blocked_by_a_writer(database):
    inside, leave = threading.Event(), threading.Event()

    def slow(connection):
        settings.put(connection, "slow", "1")
        inside.set()
        assert leave.wait(20)

    writer = threading.Thread(target=lambda: database.write(slow))
    writer.start()
    assert inside.wait(20)
    assert "slow" not in keys(database)
    leave.set()
    writer.join(20)
    assert "slow" in keys(database)


def test_a_write_inside_a_write_is_refused_instead_of_waiting_for_itself(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'd'}")
    migrate(database.engine)
    with pytest.raises(RuntimeError, match="inside"):
        database.write(lambda _: database.write(put("inner")))
    database.write(put("after"))
    database.close()
