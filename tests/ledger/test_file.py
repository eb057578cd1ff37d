"""The file behind a ledger: where it may be, and what happens when it cannot be used."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from kvrelease.errors import InputError, KvreleaseError, ServiceError, UsageError
from kvrelease.ledger import store
from kvrelease.ledger.store import IN_MEMORY, Ledger, default_ledger_url
from tests.builders import NEW_KV


def use(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.namespace(kv_name=NEW_KV, runtime="undeclared", made_by="test")


def names_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM namespaces").fetchone()[0])


def names_every_way_out(error: KvreleaseError) -> None:
    for way in ("--ledger sqlite:////", "KVRELEASE_LEDGER", "--no-ledger"):
        assert way in (error.hint or "")


def test_a_path_with_spaces_and_missing_directories(tmp_path: Path) -> None:
    path = tmp_path / "my state" / "ledger one.db"
    use(f"sqlite:///{path}")
    assert names_in(path) == 1


def test_a_relative_path_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use("sqlite:///state/l.db")
    assert names_in(tmp_path / "state" / "l.db") == 1


def test_no_ledger_leaves_no_file_and_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with Ledger(IN_MEMORY) as ledger:
            _, is_new = ledger.namespace(kv_name=NEW_KV, runtime="undeclared", made_by="test")
            assert is_new
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_ledger_is_below_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_ledger_url() == "sqlite:////state/kvrelease/ledger.db"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_ledger_url() == "sqlite:////home/me/.local/state/kvrelease/ledger.db"


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InputError, match="no home directory") as caught:
        default_ledger_url()
    names_every_way_out(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ledger.db", "--ledger ledger.db: not a database URL"),
        ("", "not a database URL"),
        ("postgresql://me:hunter2@db/kv", "postgresql is not supported"),
        ("mysql+pymysql://me:hunter2@db/kv", r"mysql\+pymysql is not supported"),
        ("sqlite+aiosqlite:////tmp/l.db", r"sqlite\+aiosqlite is not supported"),
        ("postgresql//me:hunter2@db/kv", "not a database URL"),
        ("sqlite://tmp/l.db", "a host or parameters"),
        ("sqlite:////tmp/l.db?mode=ro&uri=true", "a host or parameters"),
    ],
)
def test_a_url_of_another_kind_is_usage_and_no_password_is_repeated(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Ledger(url)
    assert "hunter2" not in caught.value.message
    assert "sqlite:////" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"this is no database, and longer than a header of one " * 20, b"{}" * 60])
def test_what_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "l.db"
    path.write_bytes(content)
    with pytest.raises(InputError, match="file is not a database"):
        use(f"sqlite:///{path}")
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 1])
def test_another_programs_database_is_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "l.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.execute(f"PRAGMA user_version={version}")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(InputError, match="database of another program"):
        use(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_newer_schema_says_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    use(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=3")
    with pytest.raises(InputError, match="schema 3 is newer than 2") as caught:
        use(f"sqlite:///{path}")
    assert caught.value.hint == "upgrade kvrelease on this machine"


def test_a_directory_in_its_place_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unable to open database file") as caught:
        use(f"sqlite:///{tmp_path}")
    names_every_way_out(caught.value)


def test_a_file_in_place_of_its_directory_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="opening the ledger") as caught:
        use(f"sqlite:///{tmp_path / 'file' / 'l.db'}")
    names_every_way_out(caught.value)


def test_a_read_only_directory_is_an_input_error() -> None:
    """In a process of a user who is not root, to whom permissions mean something."""
    code = (
        "import os, sys\n"
        "from kvrelease.ledger.store import Ledger\n"
        "from kvrelease.ledger import tables\n"
        "import kvrelease.artifacts, sqlalchemy.dialects.sqlite, sqlite3, sqlite3.dbapi2\n"
        "Ledger('sqlite://').__exit__(None, None, None)  # everything is imported before the user changes\n"
        "from kvrelease.errors import InputError\n"
        "if os.getuid() == 0:\n"
        "    os.setuid(65534)\n"
        "try:\n"
        "    Ledger(sys.argv[1])\n"
        "except InputError as error:\n"
        "    print(error.message, '|', error.hint)\n"
    )
    # Not below the tests' own directory, which every pytest that starts meanwhile closes to other users again.
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        directory = Path(open_to_all, "state")
        directory.mkdir(mode=0o555)
        url = f"sqlite:///{directory / 'l.db'}"
        done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)
    assert "l.db: unable to open database file | name a file that can be written" in done.stdout, done.stderr


def test_a_ledger_that_is_held_is_a_service_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "l.db"
    use(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(ServiceError, match=r"another process held it for 0\.05 s"):
            use(f"sqlite:///{path}")


def test_a_failed_write_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}"
    with Ledger(url) as ledger:

        def refuse(*_: object, **__: object) -> str:
            raise InputError("no name today")

        monkeypatch.setattr(store, "namespace_text", refuse)
        with pytest.raises(KvreleaseError):
            ledger.namespace(kv_name=NEW_KV, runtime="undeclared", made_by="test")
    assert names_in(tmp_path / "l.db") == 0
