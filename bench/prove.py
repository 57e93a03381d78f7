"""The full figures that the documents quote, part by part and resumable.

    python -m bench.prove [PART...] [--folder proofs] [--publish] [--list]

Each part is a benchmark of this folder, run as a process of its own; its JSON appears as FOLDER/PART.json by rename,
so a kill leaves the old figure or the new one. A part whose file was made by the same sources is not run again, and
long parts keep what they finished in FOLDER/work, named by those sources: the next call goes on. A part that fails, or
whose claim did not hold, does not stop the others and is run again by the next call.

--publish copies the files, without the long lists, to docs/figures/.
Exit 0 when every part that was asked for has a figure whose claim holds, else 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import ROOT, environment, load, machine, say, share, sources_digest, table, write_json
from schemas.errors import EXIT_DONE, EXIT_NO
from stages.keys import DECLARED

PACKAGES = ("schemas/**/*", "environments/**/*", "evals/**/*", "stages/**/*")
_JUDGING = ("environments/**/*", "evals/verify.py", "evals/together.py", "schemas/*.py")
EVERYTHING = (*PACKAGES, "flows/*.py", "reports/**/*", "requirements.lock")
# What decides the results of a round, as the stages' keys have it, and the bundles and the template of the spec.
DECIDING = (
    *DECLARED["backflow"],
    "environments/harnesses/**/*",
    "evals/verifiers/**/*",
    "stages/templates/default.yaml",
    "requirements.lock",
)
PUBLISHED = ROOT / "docs" / "figures"
# Long lists that no document quotes.
DROPPED = frozenset(
    {"all", "agents", "findings", "answers", "pairs", "loss", "curves", "trials", "digests", "moments", "spec"}
)


@dataclass(frozen=True)
class Part:
    """`command(work, out)`: arguments after `python -m`. `says(result)`: one line. `sources`: files it depends on.

    `runs`: those of them that the kept work depends on, where they are fewer: hours of training are not repeated
    because a table was changed.
    """

    what: str
    command: Callable[[Path, Path], list[str]]
    sources: tuple[str, ...]
    says: Callable[[dict[str, Any]], str]
    runs: tuple[str, ...] | None = None


def _kill(work: Path, out: Path) -> list[str]:
    return ["bench.kill", "--times", "20", "--out", str(out)]


def _effect(work: Path, out: Path) -> list[str]:
    seeds = ["--seeds", "0", "1", "2", "--rounds", "2"]
    return ["bench.effect", *seeds, "--folder", str(work), "--out", str(out)]


def _settings(work: Path, out: Path) -> list[str]:
    return ["bench.settings", "--folder", str(work), "--out", str(out)]


def _overhead(work: Path, out: Path) -> list[str]:
    return ["bench.overhead", "--template", "default", "--folder", str(work), "--out", str(out)]


def _overhead_tiny(work: Path, out: Path) -> list[str]:
    return ["bench.overhead", "--template", "tiny", "--folder", str(work), "--out", str(out)]


def _noop(work: Path, out: Path) -> list[str]:
    return ["bench.noop", "--folder", str(work), "--out", str(out)]


def _specs(work: Path, out: Path) -> list[str]:
    return ["bench.specs", "--out", str(out)]


def _sandbox(work: Path, out: Path) -> list[str]:
    return ["bench.sandbox", "--out", str(out)]


def _probes(work: Path, out: Path) -> list[str]:
    return ["bench.probes", "--engines", "bubblewrap", "rlimits", "docker", "--out", str(out)]


def _drifts(work: Path, out: Path) -> list[str]:
    return ["bench.drifts", "--out", str(out)]


def _engines(work: Path, out: Path) -> list[str]:
    return ["bench.engines", "--out", str(out)]


def _hacks(work: Path, out: Path) -> list[str]:
    return ["bench.hacks", "--engines", "bubblewrap", "docker", "--out", str(out)]


def _verify(work: Path, out: Path) -> list[str]:
    return ["bench.verify", "--engines", "bubblewrap", "docker", "--out", str(out)]


def _mined(work: Path, out: Path) -> list[str]:
    return ["bench.mined", "--folder", str(work), "--out", str(out)]


def _faults(work: Path, out: Path) -> list[str]:
    return ["bench.faults", "--out", str(out)]


def _pins(work: Path, out: Path) -> list[str]:
    return ["bench.pins", "--folder", str(work), "--out", str(out)]


def _replay(work: Path, out: Path) -> list[str]:
    return ["bench.replay", "--folder", str(work), "--out", str(out)]


def _composition(work: Path, out: Path) -> list[str]:
    return ["bench.composition", "--out", str(out)]


def _hole(work: Path, out: Path) -> list[str]:
    return ["bench.hole", "--folder", str(work), "--out", str(out)]


def _integrity(work: Path, out: Path) -> list[str]:
    return ["bench.integrity", "--folder", str(work), "--out", str(out)]


def _triage(work: Path, out: Path) -> list[str]:
    return ["bench.triage", "--folder", str(work), "--out", str(out)]


def _vllm(work: Path, out: Path) -> list[str]:
    return ["bench.vllm_server", "--log", str(work / "server.log"), "--out", str(out)]


def _says_effect(r: dict[str, Any]) -> str:
    last = r["pooled"][max(r["pooled"])]["held_out"]["pass@1"]
    found = [f"{pair} {share(last[pair]['difference'], True)}" for pair in ("final-base", "rl-sft") if pair in last]
    return f"held-out pass@1 of the last round, {len(r['seeds'])} seeds: {', '.join(found)}"


def _says_settings(r: dict[str, Any]) -> str:
    found = {name: row["results"]["dev"] for name, row in r["variants"].items()}
    last = {name: (row.get("rl") or row["sft"])["pass@1"]["value"] for name, row in found.items()}
    return "dev pass@1: " + ", ".join(f"{name} {value:.3f}" for name, value in last.items())


def _says_overhead(r: dict[str, Any]) -> str:
    ratio, more = r["ratio"]["median"], r["difference_s"]["median"]
    return f"{r['template']}: {ratio:.3f} times the plain script, {more:+.1f} s, same weights"


def _says_vllm(r: dict[str, Any]) -> str:
    held = sum(r["checks"].values())
    return f"{held} of {len(r['checks'])} checks, mean log-probability gap {r['logprob_gap_nats']['mean']:.1e} nats"


def _says_sandbox(r: dict[str, Any]) -> str:
    best = {kind: max(row["per_second"] for row in rates.values()) for kind, rates in r["rates"].items()}
    return ", ".join(f"{kind}: {value:.1f} executions a second" for kind, value in best.items())


def _says_probes(r: dict[str, Any]) -> str:
    found = [f"{name} {row['contained']} of {row['of']}" for name, row in r["engines"].items()]
    return f"contained: {', '.join(found)}; without a sandbox {r['plain']['reached']} of {r['plain']['of']} reach something"


def _says_engines(r: dict[str, Any]) -> str:
    found = r["verifiers"]["cases"]
    return f"{found['verdicts']} verdicts on both engines, {len(found['differences'])} differ"


def _says_hacks(r: dict[str, Any]) -> str:
    found = [
        f"{name} {row['numbers_caught']} of {r['numbers']}, {row['honest']['flagged']} of {row['honest']['submissions']} flagged"
        for name, row in r["engines"].items()
    ]
    return f"caught: {'; '.join(found)}; plain pytest passes {r['plain'].get('passes', 0)}"


def _says_verify(r: dict[str, Any]) -> str:
    found = [
        f"{engine} {style} {row['ratio']['median']:.1f} times"
        for engine, rows in r["engines"].items()
        for style, row in rows["styles"].items()
    ]
    return ", ".join(found)


def _says_mined(r: dict[str, Any]) -> str:
    found = (
        f"{r['proven']} of {r['tasks']} tasks proven from {len(r['proven_of'])} packages, {r['candidates']} candidates"
    )
    return f"{found}; solved {r['solved']}"


def _says_pins(r: dict[str, Any]) -> str:
    refused = sum(row.get("refused", 0) for row in r["by_operation"].values())
    moved = sum(bool(names) for names in r["indifferent"].values())
    found = f"{r['mutations']} mutations, {refused} refusals by name, {len(r['wrong'])} wrong answers"
    return f"{found}; {moved} of {len(r['indifferent'])} things that must not matter did"


def _says_replay(r: dict[str, Any]) -> str:
    asked, same = r["failures"] + r["successes"], r["replays"][1]["L1"].get("identical", 0)
    again = r["regenerate"]
    return f"{same} of {asked} identical twice; sampled again {again.get('identical', 0)} of {sum(again.values())} identical"


def _says_composition(r: dict[str, Any]) -> str:
    rows = r["dtypes"].items()
    found = [f"{dtype} {row['alone']['identical_tokens']} of {row['alone']['of']} alone" for dtype, row in rows]
    cost = r["dtypes"]["float32"]["alone"]["times_as_long"]
    return f"same tokens as in one batch: {', '.join(found)}; alone takes {cost} times as long"


def _says_hole(r: dict[str, Any]) -> str:
    before, after = (r["contested"][number] for number in ("1", "3"))
    return f"{r['flips']['told']} flips of {r['attempts']}, {r['uses']}; passed by the hole alone on dev {before}, then {after}"


def _says_integrity(r: dict[str, Any]) -> str:
    silent, asked = r["plain_dvc"]["checkout"].get("silent", 0), r["plain_dvc"]["flips"]
    refused = f"{r['refused_by_verify']} and {r['refused_by_use']} of {r['flips']} flips refused by name"
    return f"{refused}; `dvc checkout` serves {silent} of {asked} silently"


def _planted(work: Path, out: Path) -> list[str]:
    return ["bench.planted", "--folder", str(work), "--out", str(out)]


def _says_planted(r: dict[str, Any]) -> str:
    return (
        f"{r['right']} of {r['faults']} to their owner, by the log alone {r['right_by_log']}; "
        f"{r['infrastructure_blamed_on_model']} of the machine's blamed on the model"
    )


def _ablation(work: Path, out: Path) -> list[str]:
    return ["bench.ablation", "--folder", str(work), "--out", str(out)]


def _says_ablation(r: dict[str, Any]) -> str:
    held, routed = r["with_minus_without"]["held_out"]["difference"], r["routed_buckets_smaller"]
    dev = r["with_minus_without_on_dev"]
    told = [
        f"dev, {side} families {share(dev[side]['difference'], signed=True)}"
        for side in ("treated", "untreated")
        if side in dev
    ]
    told += [f"held_out {share(held, signed=True)}", f"routed buckets smaller {routed['smaller']} of {routed['of']}"]
    return "; ".join(told)


def _label(work: Path, out: Path) -> list[str]:
    return ["bench.label", "--folder", str(work), "--out", str(out)]


def _says_label(r: dict[str, Any]) -> str:
    kinds = [
        ", ".join(f"{item['amount']} {item['kind']}" for item in r[side]["material"]) for side in ("left", "labelled")
    ]
    return f"{r['label']['from']} -> {r['label']['to']}: {kinds[0]} without, {kinds[1]} with"


def _says_triage(r: dict[str, Any]) -> str:
    ours, user = r["ways"]["postloop"], r["ways"]["pandas_json"]
    found = f"{r['rows']:,} rows in {ours['seconds']['median']:.1f} s and {ours['peak_mib']['median']:.0f} MiB"
    return f"{found}; pandas on JSON lines {user['seconds']['median']:.1f} s and {user['peak_mib']['median']:.0f} MiB"


def _says_kill(r: dict[str, Any]) -> str:
    return f"{r['equal']} of {r['times']} restarted rounds equal after {r['kills']} kills"


# In this order: short ones first, so that an early error shows early.
PARTS: dict[str, Part] = {
    "specs": Part(
        "malformed specs: exit 2, a line each, nothing written",
        _specs,
        ("schemas/*.py", "stages/spec*.py", "stages/templates/*", "flows/cli.py", "tests/stages/test_spec.py",
         "evals/rules*", "bench/specs.py", "bench/noop.py"),
        lambda r: f"{r['refused']} of {r['specs']} refused with exit 2, {r['in_one_line']} in exactly one line",
    ),
    "sandbox": Part(
        "executions a second in the sandbox",
        _sandbox,
        ("environments/*.py", "environments/engines/*.py", "schemas/execution.py", "bench/sandbox.py"),
        _says_sandbox,
    ),
    "probes": Part(
        "hostile programs on every engine, the host before and after",
        _probes,
        ("environments/*.py", "environments/engines/*.py", "environments/probes/**/*", "schemas/execution.py", "bench/probes.py"),
        _says_probes,
    ),
    "drifts": Part(
        "planted drifts: found, and the cause named",
        _drifts,
        (*_JUDGING, "evals/verifiers/**/*", "stages/canary.py", "bench/drifts.py"),
        lambda r: f"{r['found']} of {r['planted']} found, {r['named']} of {r['planted']} named",
    ),
    "engines": Part(
        "the same verdict on both engines, whole default suite",
        _engines,
        (*_JUDGING, "evals/verifiers/cases/*", "bench/engines.py", "bench/probes.py", "tests/dockerd.py"),
        _says_engines,
    ),
    "hacks": Part(
        "the hack catalogue on both engines, honest submissions, plain pytest",
        _hacks,
        (*_JUDGING, "evals/**/*.py", "bench/hacks.py"),
        _says_hacks,
    ),
    "verify": Part(
        "verified attempts a second against plain pytest",
        _verify,
        (*_JUDGING, "evals/verifiers/**/*", "bench/verify.py"),
        _says_verify,
    ),
    "mined": Part(
        "repair tasks from published packages: losses by proof, an agent that solves them",
        _mined,
        (*PACKAGES, "flows/tasks.py", "recipes/mined.yaml", "bench/mined.py"),
        _says_mined,
    ),
    "faults": Part(
        "injected infrastructure failures in a round: none of their verdicts is used",
        _faults,
        (*EVERYTHING, "bench/faults.py"),
        lambda r: ", ".join(f"{name}: {'holds' if row.get('holds') else 'fails'}" for name, row in r["faults"].items()),
    ),
    "replay": Part(
        "attempts of a real round, scored, executed and sampled again",
        _replay,
        (*EVERYTHING, "bench/replay.py"),
        _says_replay,
    ),
    "composition": Part(
        "the same seeds in batches composed otherwise, fp32 and bf16",
        _composition,
        ("stages/samplers/**/*", "bench/composition.py", "requirements.lock"),
        _says_composition,
    ),
    "hole": Part(
        "a planted verifier hole: flips, what had used them, the rebuild",
        _hole,
        (*EVERYTHING, "bench/hole.py"),
        _says_hole,
    ),
    "integrity": Part(
        "single bit flips in stored objects: refused by name, by verify and at use",
        _integrity,
        (*EVERYTHING, "bench/integrity.py"),
        _says_integrity,
    ),
    "pins": Part(
        "one thing changed at a time: refused by the pin's name, or nothing to refuse",
        _pins,
        (*EVERYTHING, "bench/pins.py"),
        _says_pins,
    ),
    "planted": Part(
        "planted faults: is each given to the stage that owns it",
        _planted,
        (*DECIDING, "bench/planted*.py", "bench/faults.py"),
        _says_planted,
    ),
    "ablation": Part(
        "a round fed by failures beside one with as much of everything and nothing routed",
        _ablation,
        (*DECIDING, "bench/ablation.py"),
        _says_ablation,
    ),
    "label": Part(
        "a label on a trace of a real MLflow server, and the next round with and without it",
        _label,
        (*EVERYTHING, "bench/label.py"),
        _says_label,
    ),
    "triage": Part(
        "a million stored failures into buckets, beside pandas on the same records",
        _triage,
        ("evals/triage.py", "evals/rules*", "schemas/bucket.py", "bench/triage.py"),
        _says_triage,
    ),
    "noop": Part(
        "seconds of a run with nothing to do",
        _noop,
        (*EVERYTHING, "bench/noop.py"),
        lambda r: f"{r['seconds']['median']:.2f} s, median of {r['seconds']['n']} (limit {r['limit_s']:g} s)",
    ),
    "overhead-tiny": Part(
        "fixed cost of a round beside a plain script",
        _overhead_tiny,
        (*EVERYTHING, "bench/overhead.py", "bench/plain.py"),
        _says_overhead,
    ),
    "kill": Part(
        "kill -9 at random moments, then the same digests",
        _kill,
        (*EVERYTHING, "bench/kill.py"),
        _says_kill,
    ),
    "vllm": Part(
        "the vllm sampler against a real server",
        _vllm,
        ("stages/samplers/*.py", "stages/rollout.py", "environments/**/*", "schemas/*.py", "bench/vllm_server.py"),
        _says_vllm,
    ),
    "effect": Part(
        "base, SFT, RL over 3 seeds and 2 rounds; buckets",
        _effect,
        (*DECIDING, "bench/effect.py"),
        _says_effect,
        runs=DECIDING,
    ),
    "settings": Part(
        "settings of the default compared on dev",
        _settings,
        (*DECIDING, "bench/settings.py"),
        _says_settings,
    ),
    "overhead": Part(
        "a real round beside a plain script",
        _overhead,
        (*EVERYTHING, "bench/overhead.py", "bench/plain.py"),
        _says_overhead,
    ),
}  # fmt: skip


def digest_of_part(name: str) -> str:
    return sources_digest((*PARTS[name].sources, "bench/common.py"))


def figure(folder: Path, name: str) -> dict[str, Any] | None:
    """The part's file, or None when there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found


def prove(folder: Path, name: str) -> bool:
    """Bring one part to its figure. False when its benchmark failed; then an older figure stays."""
    code, found = digest_of_part(name), figure(folder, name)
    if found is not None and found["sources"] == code and found["holds"]:
        say(f"{name}: up to date")
        return True
    kept = sources_digest(PARTS[name].runs or PARTS[name].sources)
    work = folder / "work" / f"{name}-{kept[:12]}"
    work.mkdir(parents=True, exist_ok=True)
    out = work / "result.json"
    stale = _changed_ns(out)  # left there: some parts go on from it
    arguments = PARTS[name].command(work, out)
    say(f"{name}: {PARTS[name].what}")
    before, began = load(), time.monotonic()
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=environment(), check=False)
    if done.returncode not in (EXIT_DONE, EXIT_NO) or _changed_ns(out) == stale:
        say(f"{name}: FAILED, exit {done.returncode}, no result")
        return False
    result = json.loads(out.read_text(encoding="utf-8"))
    # A result with exit 1 is a figure whose claim does not hold: it is kept and shown as such.
    write_json(
        folder / f"{name}.json",
        {
            "part": name,
            "what": PARTS[name].what,
            "command": "python -m " + " ".join(arguments[:1] + _without_paths(arguments[1:])),
            "sources": code,
            "holds": done.returncode == EXIT_DONE,
            "seconds": round(time.monotonic() - began, 1),
            "load": [before, load()],
            "machine": machine(),
            "result": result,
        },
    )
    return done.returncode == EXIT_DONE


def _changed_ns(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


def _without_paths(arguments: list[str]) -> list[str]:
    """The command as a reader would type it: places that only this run had are left as their names."""
    return [f"{Path(word).name}" if word.startswith("/") else word for word in arguments]


def overview(folder: Path, names: list[str]) -> str:
    rows = []
    for name in names:
        found = figure(folder, name)
        if found is None:
            rows.append([name, "missing", "", PARTS[name].what])
            continue
        fresh = "holds" if found["holds"] else "DOES NOT HOLD"
        state = fresh if found["sources"] == digest_of_part(name) else f"{fresh}, other sources"
        rows.append([name, state, f"{found['seconds']:.0f}", PARTS[name].says(found["result"])])
    return table(["part", "state", "seconds", "figure"], rows)


def publish(folder: Path, names: list[str]) -> None:
    for name in names:
        found = figure(folder, name)
        if found is not None:
            write_json(PUBLISHED / f"{name}.json", shortened(found))
            say(f"{name}: published as {(PUBLISHED / f'{name}.json').relative_to(ROOT)}")


def shortened(value: Any) -> Any:
    """Without the long lists; everything else as it is."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items() if key not in DROPPED}
    return [shortened(item) for item in value] if isinstance(value, list) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all when left out: {', '.join(PARTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "proofs")
    parser.add_argument("--publish", action="store_true", help="copy the figures to docs/figures/")
    parser.add_argument("--list", action="store_true", help="run nothing; show what there is")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such part; one of {', '.join(PARTS)}")
    names = [name for name in PARTS if not options.parts or name in options.parts]
    folder = options.folder.resolve()
    failed = [name for name in ([] if options.list else names) if not prove(folder, name)]
    if options.publish:
        publish(folder, names)
    print(overview(folder, names))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
