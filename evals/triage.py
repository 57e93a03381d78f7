"""Recorded evidence to bucket counts, a million rows at a time: the rules as vectorised expressions over Parquet.

The same answer as `evals.rules.decide` gives row by row, which a test and the benchmark compare. A row group is in memory at a
time, and of it only the columns that a rule or a bucket asks for. A field of an experiment that was not run matches nothing.

Not covered: writing attempts as evidence (evals/evidence.py), members and examples of buckets (evals/buckets.py).
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from evals.rules import LOGGED, operands
from schemas.attribution import FILLED_BY, Attribution
from schemas.base import Json
from schemas.bucket import Evidence, Rule
from schemas.errors import InputError

CAUSE = "cause"  # no field of the evidence: what was decided over it
BATCH = 131_072  # rows in memory at a time
Counts = dict[tuple[str, str], int]  # (cause, family) -> failures
_ORDER = {"gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal"}


@dataclass(frozen=True)
class Triaged:
    """`rules`: rule id -> rows that it decided."""

    counts: Counts
    rules: dict[str, int]
    rows: int


def evidence_schema() -> Any:
    """Arrow schema of Evidence: one typed column a field."""
    import pyarrow as pa

    return pa.schema([pa.field(name, _arrow(field.annotation)) for name, field in Evidence.model_fields.items()])


def write_evidence(path: Path, parts: Iterable[Sequence[Evidence]]) -> int:
    """A row group a part; returns the rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, rows = evidence_schema(), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts:
            rows += len(part)
            writer.write_table(pa.Table.from_pylist([one.model_dump(mode="json") for one in part], schema=schema))
    return rows


def write_attributed(path: Path, found: Sequence[Attribution]) -> None:
    """Evidence as above, and beside it the cause that it was given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = evidence_schema().append(pa.field(CAUSE, pa.string()))
    rows = [{**one.evidence.model_dump(mode="json"), CAUSE: one.cause} for one in found]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def recorded(tables: Sequence[Path]) -> Counts:
    """(cause, family) -> failures, as they were attributed when they were written (`write_attributed`)."""
    import pyarrow.parquet as pq

    counts: Counter[tuple[str, str]] = Counter()
    for path in tables:
        grouped = (
            pq.read_table(path, columns=[CAUSE, "family"]).group_by([CAUSE, "family"]).aggregate([([], "count_all")])
        )
        for row in grouped.to_pylist():
            counts[row[CAUSE], row["family"]] += row["count_all"]
    return dict(sorted(counts.items()))


def evidence_fields(path: Path) -> set[str]:
    """Fields that a table holds: one from before a field was added lacks it."""
    import pyarrow.parquet as pq

    return set(pq.read_schema(path).names)


def triage(tables: Sequence[Path], rules: Sequence[Rule], batch: int = BATCH) -> Triaged:
    """(cause, family) -> failures of all tables. InputError for a column that a rule asks for and a table lacks, or a row that
    no rule matches."""
    counts: Counter[tuple[str, str]] = Counter()
    decided: Counter[str] = Counter()
    rows = 0
    for part in _batches(tables, columns_of(rules), batch):
        rows += part.num_rows
        _count(part, rules, counts, decided)
    return Triaged(dict(sorted(counts.items())), {r.id: decided[r.id] for r in rules}, rows)


def columns_of(rules: Sequence[Rule]) -> list[str]:
    """Fields that decide: those of `when`, the fields that they are compared with, and the family."""
    asked = {name for rule in rules for name in rule.when}
    asked |= {operand for rule in rules for wanted in rule.when.values() for operand in operands(wanted)}
    return sorted({*asked, "family", "measured"})


def first_match(part: Any, rules: Sequence[Rule]) -> Any:
    """For each row the index of the first rule that matches it, as `decide` finds it. Rows that none matches have -1."""
    import numpy as np

    chosen = np.full(part.num_rows, -1, dtype=np.int32)
    left = np.ones(part.num_rows, dtype=bool)
    seen: dict[str, Any] = {}
    for number, rule in enumerate(rules):
        if not left.any():
            break
        hit = left & _mask(part, rule, seen)
        chosen[hit] = number
        left &= ~hit
    return chosen


def _count(part: Any, rules: Sequence[Rule], counts: Counter[tuple[str, str]], decided: Counter[str]) -> None:
    import numpy as np
    import pyarrow.compute as pc

    chosen = first_match(part, rules)
    if len(chosen) and chosen.min() < 0:
        raise InputError(
            f"{int((chosen < 0).sum())} rows of evidence: none of {len(rules)} rules matches; end with `when: {{}}`"
        )
    encoded = pc.dictionary_encode(part["family"].combine_chunks())
    names = encoded.dictionary.to_pylist()
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    totals = np.bincount(chosen.astype(np.int64) * max(1, len(names)) + numbers, minlength=0)
    for place in np.flatnonzero(totals):
        rule, family = rules[int(place) // len(names)], names[int(place) % len(names)]
        counts[rule.cause, family] += int(totals[place])
        decided[rule.id] += int(totals[place])


def _batches(tables: Sequence[Path], columns: list[str], size: int) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in tables:
        file = pq.ParquetFile(path)
        missing = sorted(set(columns) - set(file.schema_arrow.names))
        if missing:
            raise InputError(f"{path}: no column {missing[0]}, which a rule asks for; write it with write_evidence")
        for part in file.iter_batches(batch_size=size, columns=columns):
            yield pa.Table.from_batches([part])


# --- one rule


def _mask(part: Any, rule: Rule, seen: dict[str, Any]) -> Any:
    """Where all comparisons of a rule hold. `seen`: comparisons of earlier rules, many of which are asked for again."""
    import numpy as np

    mask = np.ones(part.num_rows, dtype=bool)
    for name, wanted in rule.when.items():
        key = f"{name} {wanted!r}"
        if key not in seen:
            seen[key] = _holds(part, name, wanted)
            for field in (name, *operands(wanted)):
                if field in FILLED_BY and field not in LOGGED:
                    seen[key] = seen[key] & _measured(part, FILLED_BY[field], seen)
        mask &= seen[key]
    return mask


def _measured(part: Any, experiment: str, seen: dict[str, Any]) -> Any:
    """Rows whose experiment was run."""
    import numpy as np
    import pyarrow.compute as pc

    if experiment not in seen:
        lists = part["measured"].combine_chunks()
        mask = np.zeros(part.num_rows, dtype=bool)
        named = pc.fill_null(pc.equal(pc.list_flatten(lists), experiment), False).to_numpy(zero_copy_only=False)
        mask[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)[named]] = True
        seen[experiment] = mask
    return seen[experiment]


def _holds(part: Any, name: str, wanted: Json) -> Any:
    import numpy as np

    column = part[name].combine_chunks()
    if not isinstance(wanted, dict):
        return _true(_equals(column, wanted), part.num_rows)
    mask = np.ones(part.num_rows, dtype=bool)
    for operator, operand in wanted.items():
        mask &= _true(_compared(part, column, operator, operand), part.num_rows)
    return mask


def _true(found: Any, rows: int) -> Any:
    """Booleans; what is null does not hold. `found`: an array, or one answer for all rows."""
    import numpy as np
    import pyarrow.compute as pc

    if isinstance(found, bool):
        return np.full(rows, found)
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _equals(column: Any, wanted: Json) -> Any:
    """JSON equality, as `decide` has it: null equals null, true is not 1, a list equals the same list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if wanted is None:
        return pc.is_null(column)
    if pa.types.is_list(column.type):
        return _same_list(column, wanted)
    if not _fits(column.type, wanted):
        return False
    if pa.types.is_boolean(column.type):
        return column if wanted is True else pc.invert(column) if wanted is False else pc.equal(column, wanted == 1)
    return pc.equal(column, wanted)


def _fits(kind: Any, wanted: Json) -> bool:
    """Python finds 1 == True in a column of flags, and `decide` with it; but a rule's true is not the number 1."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return isinstance(wanted, str)
    if pa.types.is_boolean(kind):
        return isinstance(wanted, bool) or wanted in (0, 1)
    return isinstance(wanted, int | float) and not isinstance(wanted, bool)


def _same_list(column: Any, wanted: Json) -> Any:
    """Lists are short and few of them differ, so each distinct one is compared once."""
    import pyarrow as pa

    return pa.array([value == wanted if value is not None else None for value in column.to_pylist()], pa.bool_())


def _compared(part: Any, column: Any, operator: str, operand: Json) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if operator == "in":
        options = operand if isinstance(operand, list) else []
        plain = [int(one) if isinstance(one, bool) and not pa.types.is_boolean(column.type) else one for one in options]
        return _any([_equals(column, one) for one in plain if one is not None], len(column))  # Python: 1 in [true]
    if operator == "contains":
        return _contains(column, operand)
    left = pc.list_value_length(column) if pa.types.is_list(column.type) else column
    right = part[operand].combine_chunks() if isinstance(operand, str) else operand
    return pc.call_function(_ORDER[operator], [left, right if isinstance(operand, str) else pa.scalar(right)])


def _any(found: Sequence[Any], rows: int) -> Any:
    import numpy as np
    import pyarrow as pa

    mask = np.zeros(rows, dtype=bool)
    for one in found:
        mask |= _true(one, rows)
    return pa.array(mask)


def _contains(column: Any, wanted: Json) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = np.zeros(len(column), dtype=bool)
    if isinstance(wanted, str):
        mask[pc.list_parent_indices(column).filter(pc.equal(pc.list_flatten(column), wanted)).to_numpy()] = True
    return pa.array(mask)


# --- types


def _arrow(annotation: Any) -> Any:
    import pyarrow as pa

    plain = [part for part in _parts(annotation) if part is not type(None)]
    if get_origin(plain[0]) is list:
        return pa.list_(pa.string())
    if all(isinstance(part, str) for part in plain):
        return pa.string()
    return {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}[plain[0]]


def _parts(annotation: Any) -> list[Any]:
    """The alternatives of an annotation; those of a Literal are its values."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, Literal):
        return [part for one in get_args(annotation) for part in ([one] if origin is Literal else _parts(one))]
    return [annotation]
