"""Connections and transactions, the same for SQLite and PostgreSQL.

SQLite has one writer: a thread that runs every waiting write in one transaction, each inside its own
savepoint, and answers all of them after the one commit. A caller's write is durable when ``write``
returns, at a fraction of a disk flush each. PostgreSQL groups commits by itself, so there every caller
uses its own transaction.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

__all__ = ["Connection", "Database", "DatabaseFull", "DatabaseUnavailable", "Write"]

T = TypeVar("T")
Write = Callable[[Connection], T]

MAX_GROUP = 256
_BUSY_SECONDS = 30
_BUSY_PAUSE_SECONDS = 0.01
_LOST_RACES = frozenset({"40001", "40P01", "23505"})
"""PostgreSQL: serialization failure, deadlock, and a unique key that another transaction took first."""
_DISK_FULL = "53100"
_OUTAGES = ("08", "25006", "40", "53", "55P03", "57", "58")
"""PostgreSQL's codes, and classes of codes, of a server that cannot now and may later: no connection, a
read-only standby, a lost race, no resources, a lock, shutting down, a failure of its system."""
_OUR_FAULTS = frozenset(
    {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)
"""SQLite's codes of a statement or a value that is wrong; with others its file cannot be used now."""
_TRIES = 5


class DatabaseUnavailable(Exception):
    """The database did not answer; asking again may help."""


class DatabaseFull(DatabaseUnavailable):
    """The disk of the database is full; nothing was changed."""


class Database:
    """A database and its two ways in: ``read`` and ``write``. Thread-safe.

    Raises `ValueError` for a URL that is none or names another kind than SQLite and PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self.url = _checked_url(url)
        self.dialect = self.url.get_backend_name()
        if self.dialect == "sqlite":
            self._file = _File(self.url.database)
            self.engine = _sqlite(url, self._file)
        else:
            self._file = _File(None)
            driver = self.url.set(drivername="postgresql+psycopg")
            # Values of statements may be users' own; they belong in no error text or log (P9).
            self.engine = create_engine(
                driver, pool_size=16, max_overflow=32, pool_pre_ping=True, hide_parameters=True
            )
        self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writer = _GroupWriter(self.engine, self._file) if self.dialect == "sqlite" else None
        self._listeners: list[Callable[[], None]] = []

    def on_write(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` (quickly, from any thread) after each commit made through this object."""
        self._listeners.append(listener)

    def check_file(self) -> None:
        """Raise `DatabaseUnavailable` if the file of SQLite was moved away or replaced; costs a ``stat``.

        Whoever has it open goes on as if nothing had happened, and what is written then is lost.
        """
        self._file.check()

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading; each statement sees the newest committed state."""
        try:
            with self._reading.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise _told(error) from error

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection on which all statements see one committed state."""
        try:
            with self.engine.connect() as plain:
                options: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
                if self.dialect == "sqlite":
                    options = {"trainshed_begin": "BEGIN"}
                connection = plain.execution_options(**options)
                with connection.begin():
                    yield connection
        except DBAPIError as error:
            raise _told(error) from error

    def write(self, work: Write[T]) -> T:
        """Run ``work`` in a transaction; it is durable when this returns.

        ``work`` may run more than once and may share the transaction with others, so it does nothing
        but database work. Whatever it raises undoes its own statements and is raised here.
        """
        result = self._writer.submit(work).result() if self._writer else self._write_postgresql(work)
        for listener in self._listeners:
            listener()
        return result

    def _write_postgresql(self, work: Write[T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if tries_left and getattr(error.orig, "sqlstate", None) in _LOST_RACES:
                    continue
                raise _told(error) from error
        raise AssertionError("unreachable: the last try returns or raises")

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        self.engine.dispose()


def _checked_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError("the database URL cannot be parsed; write postgresql://user@host/name") from None
    if url.get_backend_name() not in {"sqlite", "postgresql"}:
        raise ValueError(f"the database must be sqlite or postgresql, not {url.get_backend_name()}")
    return url


class _GroupWriter:
    """The one thread that writes to SQLite."""

    def __init__(self, engine: Engine, file: _File) -> None:
        self._engine = engine
        self._file = file
        self._connection: Connection | None = None
        self._waiting: queue.SimpleQueue[tuple[Write[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Write[T]) -> Future[T]:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a write inside a write would wait for itself for ever")
        future: Future[T] = Future()
        with self._lock:
            # Under the lock: nothing may be queued behind the end mark, where nobody would answer it.
            if self._closed:
                raise DatabaseUnavailable("the database is closed")
            self._waiting.put((work, future))
        return future

    def close(self) -> None:
        """Finish what waits, then end the thread; repeatable."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            item = self._waiting.get()
            if item is None:
                break
            group = [item]
            with contextlib.suppress(queue.Empty):
                while len(group) < MAX_GROUP and not last:
                    following = self._waiting.get_nowait()
                    if following is None:
                        last = True
                    else:
                        group.append(following)
            self._commit(group)
        self._disconnect()

    def _commit(self, group: list[tuple[Write[Any], Future[Any]]]) -> None:
        done: list[tuple[Future[Any], Any]] = []
        try:
            connection, driver = self._connect()
            self._file.check()
            driver.execute("BEGIN IMMEDIATE")
            for work, future in group:
                self._run_one(connection, driver, work, future, done)
            driver.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - every waiting caller must get an answer
            self._roll_back()
            unanswered = [item for item in group if not item[1].done()]
            if len(group) > 1:
                # One write took the whole transaction with it (a full disk does): each gets its own now.
                for item in unanswered:
                    self._commit([item])
            else:
                for _, future in unanswered:
                    future.set_exception(_told(error))
            return
        for future, value in done:
            future.set_result(value)

    @staticmethod
    def _run_one(
        connection: Connection,
        driver: sqlite3.Connection,
        work: Write[Any],
        future: Future[Any],
        done: list[tuple[Future[Any], Any]],
    ) -> None:
        driver.execute("SAVEPOINT one")
        try:
            value = work(connection)
        except BaseException as error:  # noqa: BLE001 - belongs to this caller alone
            try:
                driver.execute("ROLLBACK TO one")
                driver.execute("RELEASE one")
            except sqlite3.Error:
                raise error from None  # SQLite has rolled everything back already; this is why
            future.set_exception(_told(error))
        else:
            driver.execute("RELEASE one")
            done.append((future, value))

    def _connect(self) -> tuple[Connection, sqlite3.Connection]:
        """The writer's own connection, kept, and the driver's below it.

        Transactions are begun and ended on the latter: SQLAlchemy's way costs more than most writes do.
        """
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = self._connection.connection.driver_connection
        return self._connection, driver

    def _roll_back(self) -> None:
        """Undo what is left of the transaction; a connection that cannot even do that is given up."""
        try:
            _, driver = self._connect()
            if driver.in_transaction:
                driver.execute("ROLLBACK")
        except (DBAPIError, sqlite3.Error):
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


class _File:
    """The file that SQLite was opened with, to be told from another one of its name."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path in {None, "", ":memory:"} else path
        self._opened: tuple[int, int] | None = None

    def opened(self) -> None:
        """A connection was made: the file is there."""
        if self._opened is None:
            self._opened = self._identity()

    def check(self) -> None:
        if self._opened is not None and self._identity() != self._opened:
            raise DatabaseUnavailable(f"its file {self._path} was moved or replaced while the server ran")

    def _identity(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)  # noqa: PTH116 - once a commit, and a Path costs more than the call
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _told(error: BaseException) -> BaseException:
    """What a caller is told of ``error``: an outage of the database by that name, anything else as it is."""
    if isinstance(error, DBAPIError | sqlite3.Error) and _is_outage(error):
        return _unavailable(error)
    return error


def _is_outage(error: DBAPIError | sqlite3.Error) -> bool:
    """Whether the database could not do it now and may later; else the statement or a value is wrong."""
    said = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(said, sqlite3.Error):
        # The plain class is that of a file that is damaged or no database.
        of_file = isinstance(said, sqlite3.OperationalError) or type(said) is sqlite3.DatabaseError
        return of_file and getattr(said, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF not in _OUR_FAULTS
    state = getattr(said, "sqlstate", None)
    if state is None:
        # The driver itself speaks: there is no connection, or it does not take the value.
        return isinstance(error, OperationalError) or (
            isinstance(error, DBAPIError) and error.connection_invalidated
        )
    return str(state).startswith(_OUTAGES)


def _unavailable(error: DBAPIError | sqlite3.Error) -> DatabaseUnavailable:
    said = error.orig if isinstance(error, DBAPIError) else error
    full = (
        getattr(said, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(said, "sqlstate", None) == _DISK_FULL
    )
    return (DatabaseFull if full else DatabaseUnavailable)(str(said))


def _sqlite(url: str, file: _File) -> Engine:
    engine = create_engine(
        url,
        pool_size=24,
        max_overflow=64,
        pool_use_lifo=True,  # the connection used last still knows its statements and pages
        hide_parameters=True,  # as for PostgreSQL above
        connect_args={"check_same_thread": False, "cached_statements": 256},
    )

    @event.listens_for(engine, "do_connect")
    def only_the_same_file(*_: Any) -> None:
        # Opening a file that was moved away would make an empty one in its place.
        file.check()

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN comes too late for a write lock; SQLAlchemy's event gives it instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
        _use_wal(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()
        file.opened()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql(options.get("trainshed_begin", "BEGIN IMMEDIATE"))

    return engine


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Switch a new database to its write-ahead log, the first time somebody opens it.

    Of processes that do so at once one wins; SQLite tells the others at once that it is locked, whatever
    the busy timeout says.
    """
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_BUSY_PAUSE_SECONDS)
        else:
            return
