"""What all tables share: names of their constraints, the key that counts by itself, common constraints."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Index, Integer, MetaData, text

from trainshed.model.states import AllocationState, OutputStatus, State

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    },
)

# SQLite numbers rows by itself only where the key is spelled INTEGER.
BigKey = BigInteger().with_variant(Integer, "sqlite")


def one_of(column: str, words: type[State | AllocationState | OutputStatus]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(str(w)) for w in words)})", name=column)


def partial_index(name: str, column: str, *, where: str) -> Index:
    """An index of the few rows that are ever asked for; the others cost it nothing."""
    return Index(name, column, sqlite_where=text(where), postgresql_where=text(where))
