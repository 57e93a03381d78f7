"""A million recorded failures into buckets: the rules over Parquet, beside pandas on the same records.

    python -m bench.triage --folder DIR --out FILE.json [--rows 1000000] [--runs 3] [--seed 0]

The evidence is drawn from a seed: fields in realistic shares, families and causes alike. Three ways, each in a process of its
own, from files to counts: `evals.triage` over Parquet; pandas over JSON lines, as records are usually kept; pandas over the
columns that decide of the same Parquet, which tells what is due to the format. All three must give the same counts, and a
random sample is decided row by row by `evals.rules.decide` as well.

Not covered: making evidence of attempts, and reading from a cold disk: files are warm for all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import common
from bench.common import say, spread, table, write_json
from evals.rules import LOGGED, decide, load_rules
from evals.triage import BATCH, columns_of, evidence_schema, first_match, triage
from schemas.attribution import FILLED_BY, RUNGS, Rung
from schemas.base import digest_of
from schemas.bucket import Evidence, Rule
from schemas.errors import IntegrityError, PostloopError

SAMPLE = 5000  # rows that are decided one by one
FAMILIES = (
    "repair.value",
    "repair.condition",
    "repair.step",
    "lookup.table",
    "lookup.calc",
    "instruction",
    "tools",
    "mined",
)
WAYS = ("postloop", "pandas_json", "pandas_parquet")


# --- the evidence


def draw(rows: int, seed: int) -> Any:
    """An Arrow table of evidence. Shares: 2% lost or unscored, a third unchanged, a quarter of the experiments not run."""
    import numpy as np
    import pyarrow as pa

    stream = np.random.Generator(np.random.Philox(key=[seed, rows]))
    schema = evidence_schema()
    return pa.Table.from_arrays([_column(field, rows, stream) for field in schema], schema=schema)


def _column(field: Any, rows: int, stream: Any) -> Any:
    import pyarrow as pa

    words = {
        "family": (FAMILIES, None), "status": (("scored", "unscored", "error"), (0.98, 0.01, 0.01)),
        "limit_hit": ((None, "cpu", "wall", "memory"), (0.94, 0.03, 0.02, 0.01)), "stop": (("submitted", "turn_limit"), None),
        "rescored": (("same", "flips"), (0.95, 0.05)), "replayed": (("same", "drifted", "unstable"), (0.9, 0.05, 0.05)),
        "chain": ((None, "tool", "cut", "tokenizer", "model"), (0.8, 0.05, 0.05, 0.05, 0.05)),
        "sandbox_event": ((None, "killed"), (0.99, 0.01)),
        "gold_reaches": (("passes", "limit", "parse"), (0.9, 0.05, 0.05)), "lost_at": (("sft", "rl", "never"), (0.1, 0.1, 0.8)),
    }  # fmt: skip
    if field.name in words:
        options, shares = words[field.name]
        drawn = [options[i] for i in stream.choice(len(options), rows, p=shares)]
        return pa.array(drawn, field.type, mask=_unmeasured(field.name, rows))
    names = {"trajectory": rows, "task_id": 4000, "nearest_task": 800, "origin": 600}
    if field.name in names:
        return pa.array([f"{field.name}-{number:08d}" for number in stream.integers(0, names[field.name], rows)])
    if field.name == "measured":
        return pa.array([PROFILES[i] for i in _profile(rows)], field.type)
    if pa.types.is_list(field.type):
        lists = [[], ["tampering"], ["protected_file", "tampering"], ["solution.py"]]
        return pa.array([lists[i] for i in stream.choice(4, rows, p=(0.9, 0.03, 0.02, 0.05))], field.type)
    return _plain(field, rows, stream)


CHEAP = sorted(name for name, rung in RUNGS.items() if rung in (Rung.L0, Rung.L1))
PROFILES: list[list[str]] = [[], list(CHEAP), sorted(RUNGS)]  # nothing, no policy asked, the whole ladder


def _profile(rows: int) -> Any:
    """Which of PROFILES each row has: the same for every column."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=[rows, 1])).choice(3, rows, p=(0.2, 0.4, 0.4))


def _unmeasured(name: str, rows: int) -> Any:
    """Rows whose profile lacks the experiment that fills this field: null there."""
    import numpy as np

    if name not in FILLED_BY or name in LOGGED:
        return np.zeros(rows, dtype=bool)
    lacking = [place for place, profile in enumerate(PROFILES) if FILLED_BY[name] not in profile]
    return np.isin(_profile(rows), lacking)


RARE = {
    "audit_differs",
    "verdict_flipped",
    "contaminated",
    "truncated",
    "forbidden",
    "tool_errors",
    "parse_errors",
    "noisy",
    "noise_hits",
}
RARE |= {"image_drifted", "current_differs", "untrained", "gold_waits"}
MOSTLY = {"gold_passes", "start_fails", "shown_holds", "rules_agree", "round_trip", "template_same", "in_capabilities"}
ALWAYS = {name for name, field in Evidence.model_fields.items() if "None" not in str(field.annotation)}


def _plain(field: Any, rows: int, stream: Any) -> Any:
    """Flags and numbers; those that an experiment fills are null in a quarter of the rows."""
    import pyarrow as pa

    share = 0.05 if field.name in RARE | MOSTLY else 0.35
    hit = stream.random(rows) < share
    hit = ~hit if field.name in MOSTLY else hit
    values = {
        "bool": lambda: hit,
        "int64": lambda: hit * stream.integers(1, 8, rows),
        "double": lambda: stream.random(rows).round(4),
    }[str(field.type)]()
    if field.name in ALWAYS:
        return pa.array(values, field.type)
    return pa.array(values, field.type, mask=(stream.random(rows) < 0.25) | _unmeasured(field.name, rows))


def prepare(folder: Path, rows: int, seed: int) -> tuple[Path, Path]:
    """The same records as Parquet and as JSON lines, made once a folder."""
    import pyarrow.parquet as pq

    parquet, lines = folder / f"evidence-{rows}-{seed}.parquet", folder / f"evidence-{rows}-{seed}.jsonl"
    if not lines.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"drawing {rows} rows of evidence")
        drawn = draw(rows, seed)
        pq.write_table(drawn, parquet, compression="zstd", row_group_size=BATCH)
        part = lines.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            for batch in drawn.to_batches(max_chunksize=20_000):
                file.writelines(f"{json.dumps(row)}\n" for row in batch.to_pylist())
        part.replace(lines)
    return parquet, lines


# --- the three ways


def by_postloop(parquet: Path, lines: Path, rules: Sequence[Rule]) -> dict[str, int]:
    return {f"{cause} {family}": n for (cause, family), n in triage([parquet], rules).counts.items()}


def by_pandas_json(parquet: Path, lines: Path, rules: Sequence[Rule]) -> dict[str, int]:
    import pandas as pd  # type: ignore[import-untyped]

    return _grouped(pd.read_json(lines, lines=True), rules)


def by_pandas_parquet(parquet: Path, lines: Path, rules: Sequence[Rule]) -> dict[str, int]:
    import pandas as pd

    return _grouped(pd.read_parquet(parquet, columns=columns_of(rules)), rules)


def _grouped(frame: Any, rules: Sequence[Rule]) -> dict[str, int]:
    """A mask a rule, the first that holds: numpy.select, then groupby."""
    import numpy as np

    masks = [_mask(frame, rule) for rule in rules]
    frame["cause"] = np.select(masks, [rule.cause for rule in rules], default="none")
    return {f"{cause} {family}": int(n) for (cause, family), n in frame.groupby(["cause", "family"]).size().items()}


def _mask(frame: Any, rule: Rule) -> Any:
    import numpy as np

    mask = np.ones(len(frame), dtype=bool)
    for name, wanted in rule.when.items():
        column = frame[name]
        if not isinstance(wanted, dict):
            lists = isinstance(wanted, list)
            held = (
                column.map(lambda v, w=wanted: list(v) == w)
                if lists
                else column.isna()
                if wanted is None
                else column == wanted
            )
            mask &= held.fillna(False).to_numpy(dtype=bool)
        for operator, operand in wanted.items() if isinstance(wanted, dict) else ():
            mask &= _compared(frame, column, operator, operand).to_numpy(dtype=bool)
    return mask


def _compared(frame: Any, column: Any, operator: str, operand: Any) -> Any:
    if operator == "in":
        return column.isin(operand)
    if operator == "contains":
        return column.map(lambda values: operand in values)
    left = (
        column.str.len()
        if column.map(type).eq(list).any() or column.name in ("violations", "touched", "measured")
        else column
    )
    right = frame[operand] if isinstance(operand, str) else operand
    return {"gt": left.gt, "ge": left.ge, "lt": left.lt, "le": left.le}[operator](right)


# --- one process a measurement


def child(way: str, parquet: Path, lines: Path) -> dict[str, Any]:
    """Files to counts. Peak memory is of the whole process, imports included."""
    ways: dict[str, Callable[[Path, Path, Sequence[Rule]], dict[str, int]]] = {
        "postloop": by_postloop, "pandas_json": by_pandas_json, "pandas_parquet": by_pandas_parquet,
    }  # fmt: skip
    rules, began = load_rules(), time.perf_counter()
    counts = ways[way](parquet, lines, rules)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_mib": _peak_mib(), "counts": counts}


def _peak_mib() -> float:
    """VmHWM of this process. Not ru_maxrss: that is handed on by exec, so a large parent would be measured."""
    found = re.search(r"(?m)^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text())
    if found is None:
        raise IntegrityError("/proc/self/status: no VmHWM; the peak memory needs Linux")
    return int(found.group(1)) / 1024


def measured(way: str, parquet: Path, lines: Path) -> dict[str, Any]:
    argv = [sys.executable, "-m", "bench.triage", "--child", way, str(parquet), str(lines)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=common.ROOT, env=common.environment(), check=False)
    if done.returncode != 0:
        raise IntegrityError(f"triage by {way}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row_by_row(parquet: Path, seed: int) -> int:
    """Rows of a random sample whose rule by `decide` is another one than the vectorised one."""
    import numpy as np
    import pyarrow.parquet as pq

    rules, whole = load_rules(), pq.read_table(parquet)
    places = np.random.default_rng(seed).choice(whole.num_rows, min(SAMPLE, whole.num_rows), replace=False)
    sample = whole.take(np.sort(places)).combine_chunks()
    chosen = first_match(sample, rules)
    rows = [Evidence.model_validate(row) for row in sample.to_pylist()]
    return sum(decide(row, rules).id != rules[int(n)].id for row, n in zip(rows, chosen, strict=True))


def measure(folder: Path, rows: int, runs: int, seed: int) -> dict[str, Any]:
    parquet, lines = prepare(folder, rows, seed)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(runs):
        for way in WAYS:  # turn by turn, so that a busy minute falls on all
            say(f"run {number + 1} of {runs}: {way}")
            found[way].append(measured(way, parquet, lines))
    counts = {way: {digest_of(one["counts"]) for one in made} for way, made in found.items()}
    shown = {
        way: {
            "seconds": spread([one["seconds"] for one in made]),
            "peak_mib": spread([one["peak_mib"] for one in made]),
            "rows_per_second": round(rows / spread([one["seconds"] for one in made])["median"]),
        }
        for way, made in found.items()
    }
    medians = {way: row["seconds"]["median"] for way, row in shown.items()}
    return {
        "rows": rows, "seed": seed, "rules": len(load_rules()), "buckets": len(found["postloop"][0]["counts"]),
        "bytes": {"parquet": parquet.stat().st_size, "json_lines": lines.stat().st_size}, "ways": shown,
        "ratio": {way: round(medians[way] / medians["postloop"], 1) for way in WAYS if way != "postloop"},
        "same_counts": len(set.union(*counts.values())) == 1,
        "row_by_row": {"sample": min(SAMPLE, rows), "differ": row_by_row(parquet, seed)},
        "machine": common.machine(), "load": common.load(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("proofs/work/triage"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("WAY", "PARQUET", "JSONL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child[0], Path(options.child[1]), Path(options.child[2]))))
        return 0
    if options.out is None:
        parser.error("--out: name the file of the result")
    try:
        result = measure(options.folder.resolve(), options.rows, options.runs, options.seed)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [[way, row["seconds"]["median"], round(row["peak_mib"]["median"])] for way, row in result["ways"].items()]
    print(table([f"{result['rows']} rows", "seconds, median", "peak MiB"], rows))
    return 0 if result["same_counts"] and not result["row_by_row"]["differ"] else 1


if __name__ == "__main__":
    sys.exit(main())
