"""The ledger's store: one SQLite file, written by short transactions.

Several commands may share it (a canary and a rollback run at the same time), so every write is one transaction in WAL
mode, and two commands that make the same namespace at once get the same record.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvrelease.artifacts import Verdict
from kvrelease.errors import InputError, ServiceError, UsageError
from kvrelease.ledger.records import CacheOrigin, Event, NamespaceRecord, may_be_one_engine, namespace_text

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Row, Table

SCHEMA_VERSION = 2  # 2 has the table `sent`
APPLICATION_ID = 0x6B767265  # "kvre": tells our file from another program's
BUSY_TIMEOUT_S = 30.0
IN_MEMORY = "sqlite://"
# The ways out where a ledger cannot be written: a read-only home, a full disk.
_ELSEWHERE = (
    "name a file that can be written with --ledger sqlite:////path/ledger.db or KVRELEASE_LEDGER, or pass --no-ledger"
)
UNSALTED = ""  # engines refuse an empty salt, so it cannot be a real key space


def state_directory() -> Path:
    """Where this user's ledger and journals lie: `$XDG_STATE_HOME/kvrelease`, else below `~/.local/state`.

    Raises:
        InputError: this user has no home.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    except RuntimeError as error:  # a container's user without a home
        raise InputError(
            "opening the ledger: this user has no home directory to keep it in",
            hint=_ELSEWHERE,
        ) from error
    return Path(state).absolute() / "kvrelease"


def default_ledger_url() -> str:
    """The per-user ledger."""
    return f"sqlite:///{state_directory() / 'ledger.db'}"


class Ledger:
    """The record of releases, namespaces, epochs and what served where. Use as a context manager."""

    def __init__(self, url: str) -> None:
        """Opens, and creates where missing.

        Raises:
            UsageError: not a SQLite URL.
            InputError: no database of ours, written by a newer kvrelease, or a place that cannot be written.
            ServiceError: another process holds it.
        """
        import sqlalchemy as sa  # noqa: PLC0415 - late: 100 ms that --help must not pay

        from kvrelease.ledger import tables  # noqa: PLC0415

        self.url = url
        self._sa, self._tables = sa, tables
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError as error:
            shown = "the URL" if "@" in url else url  # it may hold a password
            raise UsageError(
                f"--ledger {shown}: not a database URL", hint="write it as sqlite:////absolute/path/ledger.db"
            ) from error
        if parsed.drivername != "sqlite":
            raise UsageError(
                f"--ledger: {parsed.drivername} is not supported", hint="use sqlite:////absolute/path/ledger.db"
            )
        if parsed.query or parsed.host:
            raise UsageError(
                "--ledger: a host or parameters after the file are not supported",
                hint="use sqlite:////absolute/path/ledger.db, with four slashes",
            )
        if parsed.database:
            try:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"opening the ledger {parsed.database}: {error.strerror}", hint=_ELSEWHERE) from error
        self._engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        try:
            with self._transaction() as connection:
                self._prepare(connection)
        except BaseException:
            self._engine.dispose()
            raise

    @property
    def is_lasting(self) -> bool:
        """Whether it knows of earlier runs, and later ones will know of this; False of one in memory."""
        return self.url != IN_MEMORY

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except self._sa.exc.OperationalError as error:
            if "locked" in str(error.orig):
                raise ServiceError(
                    f"using the ledger {self.url}: another process held it for {BUSY_TIMEOUT_S:g} s",
                    hint="run again when that process is done, or name another file with --ledger",
                ) from error
            raise InputError(f"using the ledger {self.url}: {error.orig}", hint=_ELSEWHERE) from error
        except self._sa.exc.DatabaseError as error:
            raise InputError(
                f"reading the ledger {self.url}: {error.orig}", hint="move the file away, or name another with --ledger"
            ) from error

    def _prepare(self, connection: Connection) -> None:
        if self._is_ours(connection):
            return
        # Two processes may be first at once: WAL mode cannot be set inside a transaction, and is set to the same thing
        # by both; the tables are made by whoever gets the write lock first.
        if self.is_lasting:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if not self._is_ours(connection):
            self._tables.metadata.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _is_ours(self, connection: Connection) -> bool:
        """Whether the file is a ledger of this version; False when it is empty, or of an older one."""
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
        if application != APPLICATION_ID:
            objects = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
            if version == 0 and application == 0 and objects == 0:
                return False
            raise InputError(
                f"opening the ledger {self.url}: it is a database of another program, and was left alone",
                hint="name another file with --ledger",
            )
        if version > SCHEMA_VERSION:
            raise InputError(
                f"opening the ledger {self.url}: its schema {version} is newer than {SCHEMA_VERSION}, the newest that "
                "this kvrelease knows",
                hint="upgrade kvrelease on this machine",
            )
        return bool(version == SCHEMA_VERSION)

    def namespace(
        self, *, kv_name: str, runtime: str, made_by: str, is_new_epoch: bool = False
    ) -> tuple[NamespaceRecord, bool]:
        """The current namespace of a release under a runtime, made now if nobody needed it before.

        Args:
            kv_name: of the release.
            runtime: the 8 characters of the runtime digest, or `undeclared`.
            made_by: the command that asks.
            is_new_epoch: leave the current name (it was poisoned) and make the next.

        Returns:
            The record, and whether this call made it.
        """
        table = self._tables.namespaces
        same = (table.c.kv_name == kv_name) & (table.c.runtime == runtime)
        latest = self._sa.select(table).where(same).order_by(table.c.epoch.desc()).limit(1)
        with self._transaction() as connection:
            # Take the write lock first: two commands then make one name, not two.
            connection.exec_driver_sql("INSERT INTO locks (name) VALUES ('namespace') ON CONFLICT DO NOTHING")
            row = connection.execute(latest).first()
            if row is not None and not is_new_epoch:
                return _namespace_record(row), False
            epoch = 0 if row is None else row.epoch + 1
            record = NamespaceRecord(
                namespace=namespace_text(kv_name, runtime=runtime, epoch=epoch),
                kv_name=kv_name,
                runtime=runtime,
                epoch=epoch,
                created=datetime.datetime.now(datetime.UTC),
                made_by=made_by,
            )
            connection.execute(
                table.insert().values(
                    namespace=record.namespace,
                    kv_name=kv_name,
                    runtime=runtime,
                    epoch=epoch,
                    created=record.created.isoformat(),
                    made_by=made_by,
                )
            )
            return record, True

    def other_namespaces_served(self, *, replica: str, namespace: str, limit: int) -> tuple[str, ...]:
        """[<= limit] namespaces, latest first, that requests to this replica carried before, without this one."""
        table = self._tables.events
        query = (
            self._sa.select(table.c.key_space, self._sa.func.max(table.c.id).label("latest"))
            .where(table.c.replica == replica, table.c.key_space != UNSALTED, table.c.key_space != namespace)
            .where(table.c.key_space.in_(self._sa.select(self._tables.namespaces.c.namespace)))
            .group_by(table.c.key_space)
            .order_by(self._sa.text("latest DESC"))
            .limit(limit)
        )
        with self._transaction() as connection:
            return tuple(row.key_space for row in connection.execute(query))

    def write(self, event: Event) -> None:
        """Adds one event."""
        values = {name: getattr(event, name) for name in event.__struct_fields__}
        values["at"] = event.at.isoformat()
        values["key_space"] = event.key_space or UNSALTED
        values["verdict"] = event.verdict.value if event.verdict else None
        with self._transaction() as connection:
            connection.execute(self._tables.events.insert().values(values))

    def events(self, *, limit: int = 1000) -> tuple[Event, ...]:
        """[<= limit] events, latest first."""
        table = self._tables.events
        with self._transaction() as connection:
            rows = connection.execute(self._sa.select(table).order_by(table.c.id.desc()).limit(limit)).all()
        return tuple(
            Event(
                at=datetime.datetime.fromisoformat(row.at),
                command=row.command,
                release_name=row.release_name,
                version=row.version,
                kv_name=row.kv_name,
                namespace=row.namespace,
                key_space=row.key_space or None,
                replica=row.replica,
                process=row.process,
                verdict=Verdict(row.verdict) if row.verdict else None,
                reason=row.reason,
            )
            for row in rows
        )

    def computed_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:
        """Chain hashes of the prefixes that this origin is known to have computed, and that still explain a hit.

        Nothing that another namespace's requests met in the same process and key space explains: an in-place reload
        there and back may have replaced any entry, so the whole process's record of that key space then counts for
        nothing.
        """
        return self._prefixes(self._tables.computed, origin)

    def sent_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:
        """Chain hashes of the prefixes that this origin sent without knowing what came of it, by the same rule."""
        return self._prefixes(self._tables.sent, origin)

    def sister_prefixes(self, *, namespace: str, key_space: str | None) -> frozenset[bytes]:
        """Chain hashes of what any engine process computed under these keys, for this release.

        Nothing where another namespace's requests met this key space in any process: its entries may lie in the store
        that these hashes are looked up for.
        """
        with self._transaction() as connection:
            return self._of_one_namespace(
                connection, self._tables.computed, namespace=namespace, within=lambda table: self._in(table, key_space)
            )

    def _prefixes(self, wanted: Table, origin: CacheOrigin) -> frozenset[bytes]:
        with self._transaction() as connection:
            url = self._known_as(connection, replica=origin.replica, process=origin.process)
            return self._of_one_namespace(
                connection,
                wanted,
                namespace=origin.namespace,
                within=lambda table: self._at(table, url, origin.process) & self._in(table, origin.key_space),
            )

    def _of_one_namespace(
        self,
        connection: Connection,
        wanted: Table,
        *,
        namespace: str,
        within: Callable[[Table], ColumnElement[bool]],
    ) -> frozenset[bytes]:
        """The prefixes of a table within some place; none where another namespace's requests met that place too."""
        for table in (self._tables.computed, self._tables.sent):
            if self._has_any(connection, table, within(table) & (table.c.namespace != namespace)):
                return frozenset()
        return frozenset(
            row.prefix for row in connection.execute(self._sa.select(wanted.c.prefix).where(within(wanted)))
        )

    def _known_as(self, connection: Connection, *, replica: str, process: str) -> str:
        """The URL under which the prefixes of an engine process are kept: of several that lead to it, the first used.

        Where two other URLs have prefixes of the same process, nothing tells which of them this one is: neither.
        """
        if self._has_prefixes(connection, replica, process):
            return replica
        events = self._tables.events
        others = self._sa.select(events.c.replica).distinct().where(events.c.process == process)
        known = [
            row.replica
            for row in connection.execute(others)
            if may_be_one_engine(replica, row.replica, process=process)
            and self._has_prefixes(connection, row.replica, process)
        ]
        return known[0] if len(known) == 1 else replica

    def _has_prefixes(self, connection: Connection, replica: str, process: str) -> bool:
        tables = (self._tables.computed, self._tables.sent)
        return any(self._has_any(connection, table, self._at(table, replica, process)) for table in tables)

    def _has_any(self, connection: Connection, table: Table, where: ColumnElement[bool]) -> bool:
        return connection.execute(self._sa.select(table.c.prefix).where(where).limit(1)).first() is not None

    @staticmethod
    def _in(table: Table, key_space: str | None) -> ColumnElement[bool]:
        return table.c.key_space == (key_space or UNSALTED)

    @staticmethod
    def _at(table: Table, replica: str, process: str) -> ColumnElement[bool]:
        return (table.c.replica == replica) & (table.c.process == process)

    def forget(self, *, replica: str, process: str, key_spaces: Sequence[str | None] | None = None) -> None:
        """Drops what is known of one engine process: its cache was emptied, or holds what others made.

        Args:
            replica: URL of the engine.
            process: the engine process.
            key_spaces: which of its key spaces; None for all.
        """
        with self._transaction() as connection:
            url = self._known_as(connection, replica=replica, process=process)
            for table in (self._tables.computed, self._tables.sent):
                here = self._at(table, url, process)
                if key_spaces is not None:
                    here &= table.c.key_space.in_([space or UNSALTED for space in key_spaces])
                connection.execute(table.delete().where(here))

    def add_computed_prefixes(self, origin: CacheOrigin, prefixes: Iterable[bytes]) -> None:
        """Remembers prefixes that this origin computed itself (no foreign hit below them)."""
        self._add(self._tables.computed, origin, prefixes)

    def add_sent_prefixes(self, origin: CacheOrigin, prefixes: Iterable[bytes]) -> None:
        """Remembers prefixes that this origin sent without knowing what came of it."""
        self._add(self._tables.sent, origin, prefixes)

    def _add(self, table: Table, origin: CacheOrigin, prefixes: Iterable[bytes]) -> None:
        added = tuple(prefixes)
        if not added:
            return
        with self._transaction() as connection:
            base = {
                "replica": self._known_as(connection, replica=origin.replica, process=origin.process),
                "process": origin.process,
                "key_space": origin.key_space or UNSALTED,
                "namespace": origin.namespace,
            }
            connection.execute(
                table.insert().prefix_with("OR IGNORE"), [{**base, "prefix": prefix} for prefix in added]
            )


def _namespace_record(row: Row[tuple[object, ...]]) -> NamespaceRecord:
    return NamespaceRecord(
        namespace=row.namespace,
        kv_name=row.kv_name,
        runtime=row.runtime,
        epoch=row.epoch,
        created=datetime.datetime.fromisoformat(row.created),
        made_by=row.made_by,
    )
