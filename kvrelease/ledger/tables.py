"""The ledger's tables (SQLAlchemy Core). Imported late: it pulls in all of SQLAlchemy."""

from sqlalchemy import Column, Index, Integer, LargeBinary, MetaData, String, Table

metadata = MetaData()

namespaces = Table(
    "namespaces",
    metadata,
    Column("namespace", String, primary_key=True),
    Column("kv_name", String, nullable=False),
    Column("runtime", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("created", String, nullable=False),
    Column("made_by", String, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", String, nullable=False),
    Column("command", String, nullable=False),
    Column("release_name", String, nullable=False),
    Column("version", String),
    Column("kv_name", String),
    Column("namespace", String),
    Column("key_space", String, nullable=False),
    Column("replica", String),
    Column("process", String),
    Column("verdict", String),
    Column("reason", String, nullable=False),
    Index("events_by_replica", "replica", "key_space"),
)


def _prefixes(name: str) -> Table:
    """Chain hashes of token prefixes of a release in one engine process, under one key space."""
    return Table(
        name,
        metadata,
        Column("replica", String, primary_key=True),
        Column("process", String, primary_key=True),
        Column("key_space", String, primary_key=True),
        Column("namespace", String, primary_key=True),
        Column("prefix", LargeBinary, primary_key=True),
    )


# What the release computed, and what it sent without knowing what came of it (since schema 2).
computed = _prefixes("computed")
sent = _prefixes("sent")

# A row to write first, so that a transaction holds the write lock before it reads.
locks = Table("locks", metadata, Column("name", String, primary_key=True))
