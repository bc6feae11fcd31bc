"""One of the two databases of a move, as the mover uses it: ``sqlite.py`` and ``postgres.py``.

The table ``move_mark`` says that a database takes part in a move, ``move_note`` has the keys of the rows that changed.
Both exist only while it is under way, with the triggers that write notes and those that refuse writers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.engine.redaction import shown_url
from holdfast.features.assembly import Store
from holdfast.features.moves.model import Kind, Mark, Row, Shape, Table
from holdfast.stores.forwarding import SCHEMA, without_password

NOTES: Final = 5_000
"""Notes that one round of following reads."""
Rows = Sequence[Row] | bytes
"""Rows in the form of the target, or text that COPY of PostgreSQL reads."""
Keys = Sequence[Mapping[str, Any]]
Change = tuple[Table, Keys, Rows]
"""A table, the keys of the rows that changed, as the target has them, and those of the rows that exist."""
MARK_COLUMNS = "id, other, owner, phase, progress"


class Side(ABC):
    """A database, as the source and the target of a move use it. ``id`` and ``owner`` name the move and its process."""

    kind: Kind
    id = owner = ""
    schema = SCHEMA

    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = store.url

    @property
    def shown(self) -> str:
        return shown_url(self.url)

    @property
    def announced(self) -> str:
        """The URL that programs are told."""
        return without_password(self.url)

    # --- both ---
    @abstractmethod
    def identity(self) -> str:
        """Names the database, also where two URLs mean the same."""

    @abstractmethod
    def check(self) -> None:
        """Raise if this login or this server cannot take part in a move."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether it has tables."""

    @abstractmethod
    def shapes(self) -> dict[str, Shape]:
        """The tables, also of a file that does not exist yet."""

    @abstractmethod
    def mark(self) -> Mark | None: ...
    def gone_to(self) -> str | None:
        """Where the database has gone; None if it is in use, or empty."""
        return self.store.moved_to()

    @abstractmethod
    def count(self, table: str) -> int:
        """How many rows it has, about."""

    @abstractmethod
    def upper(self, table: Table, after: Sequence[Any] | None, limit: int) -> list[Any] | None:
        """The key of the last of the next ``limit`` rows after a key; None if there are fewer."""

    @abstractmethod
    def read(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None, form: Kind) -> Rows: ...
    @abstractmethod
    def size(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None) -> int:
        """The bytes of the documents in a range, about."""

    @abstractmethod
    def fetch(self, table: Table, keys: Keys, form: Kind) -> Rows: ...
    @abstractmethod
    def missing(self, table: Table, keys: Keys) -> list[int]:
        """The indexes of the keys that no row has."""

    def read_values(self, table: Table, after: Sequence[Any] | None, upper: Sequence[Any] | None) -> Sequence[Row]:
        """The rows as SQLite keeps them, to be compared."""
        return self.read(table, after, upper, "sqlite")  # type: ignore[return-value]

    # --- source ---
    @abstractmethod
    def begin_noting(self, tables: Sequence[Table], target: str) -> None:
        """Note changes from now on. Returns when no transaction is open that began before."""

    @abstractmethod
    def notes(self) -> list[tuple[int, str, dict[str, Any]]]: ...
    @abstractmethod
    def forget(self, numbers: Sequence[int]) -> None: ...
    @abstractmethod
    def refuse(self, tables: Sequence[Table], target: str, until: float) -> None:
        """Refuse writers. Returns when no transaction is open that has written."""

    @abstractmethod
    def stop_refusing(self) -> None:
        """Admit writers again, while their changes are noted."""

    @abstractmethod
    def admit(self) -> None:
        """Admit writers again, and forget the move."""

    @abstractmethod
    def leave(self, announced: str) -> None:
        """Say where the database has gone."""

    @abstractmethod
    def cursors(self) -> list[tuple[str, dict[str, Any], str | None]]:
        """The cursors of readers as numbers: table, key and cursor."""

    # --- target ---
    @abstractmethod
    def check_empty(self, tables: Sequence[Table]) -> None: ...
    @abstractmethod
    def prepare(self, tables: Sequence[Table], source: str) -> None:
        """Create the tables if needed, and let nobody but the mover write."""

    @abstractmethod
    def take_over(self) -> Mark:
        """Become the process that moves."""

    @abstractmethod
    def store_rows(self, table: Table, rows: Rows, progress: Mapping[str, Any]) -> int: ...
    @abstractmethod
    def apply(self, changes: Iterable[Change]) -> None: ...
    @abstractmethod
    def finish_copy(self, tables: Sequence[Table]) -> None:
        """After all rows are copied, and before changes are followed."""

    @abstractmethod
    def open(
        self, tables: Sequence[Table], source: Kind, cursors: Sequence[tuple[str, dict[str, Any], str | None]]
    ) -> None:
        """Admit programs: the moment of the move."""

    @abstractmethod
    def close(self) -> None:
        """Never admit programs: the move is given up."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what a move that was given up has stored."""

    @abstractmethod
    def forget_move(self) -> None: ...
