"""Seeds that were measured apart are pooled as if in one run, and what does not belong together is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.ablation import read_seed, together
from schemas.errors import InputError

HOW = {"resamples": 200, "confidence": 0.95}


def seed(number: int, gain: float, **changes: Any) -> dict[str, Any]:
    """Six tasks of three origins; every second one gains. Two routed buckets, of which one shrank."""
    tasks = {f"t{i}": [f"o{i % 3}", 0.25 + gain * (i % 2), 0.25] for i in range(6)}
    alike = {f"u{i}": [f"o{i % 3}", 0.5, 0.5] for i in range(6)}
    side = {"buckets": 2, "smaller": 1, "verdicts": {"shrank": 1, "grew": 1}, "rows": []}
    beside = [{"with": 0.1, "without": 0.3, "difference": -0.2}, {"with": 0.5, "without": 0.4, "difference": 0.1}]
    found: dict[str, Any] = {
        "seed": number, "template": "tiny", "machine": {}, "load": [], "how": HOW, "code": "c" * 64,
        "outcomes": {"final": {"held_out": tasks}, "sft": {"held_out": tasks}},
        "dev": {"a.one": {"material": ["tasks"], "outcomes": tasks}, "a.two": {"material": [], "outcomes": alike}},
        "with": side, "without": side, "beside": beside,
        "sizes": {"with": {"rows": 9}, "without": {"rows": 8}},
    }  # fmt: skip
    return {**found, **changes}


def test_each_seed_counts_by_its_own_tasks_and_origins_are_the_clusters() -> None:
    found = together([seed(0, 0.5), seed(1, 0.0)])
    held = found["with_minus_without"]["held_out"]
    assert {name: row["value"] for name, row in held["by_seed"].items()} == {"0": 0.25, "1": 0.0}
    assert (held["difference"]["value"], held["difference"]["n"]) == (0.125, 12)
    assert found["routed_buckets_smaller"] == {"smaller": 2, "of": 4, "share": 0.5}
    apart = found["routed_buckets_with_minus_without"]
    assert apart["mean"] == pytest.approx(-0.05)
    assert apart["low"] < 0 < apart["high"]


def test_families_that_got_material_are_told_from_the_others_on_dev() -> None:
    one, other = seed(0, 0.5), seed(1, 0.5)
    other["dev"]["a.two"]["material"] = ["weights"]
    dev = together([one, other])["with_minus_without_on_dev"]
    assert {name: (row["difference"]["value"], row["difference"]["n"]) for name, row in dev.items()} == {
        "treated": (pytest.approx(1 / 6), 18), "treated: a.one": (0.25, 12), "treated: a.two": (0.0, 6),
        "untreated": (0.0, 6), "untreated: a.two": (0.0, 6),
    }  # fmt: skip
    assert (dev["treated: a.one"]["with"], dev["treated: a.one"]["without"]) == (0.5, 0.25)


def test_a_round_that_trained_nothing_has_no_checkpoint_to_compare(tmp_path: Path) -> None:
    one = seed(0, 0.5)
    one["outcomes"]["sft"] = {"held_out": {}}
    (tmp_path / "0.json").write_text(json.dumps(one))
    command = [sys.executable, "-m", "bench.ablation", "--read", str(tmp_path / "0.json"), "--out", str(tmp_path / "o")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert json.loads((tmp_path / "o").read_text())["with_minus_without_after_sft"] == {}
    other = seed(1, 0.5)
    del other["outcomes"]["sft"]["held_out"]
    with pytest.raises(InputError, match="different suites"):
        together([seed(0, 0.5), other])


@pytest.mark.parametrize(
    "other", [seed(0, 0.5), seed(1, 0.5, template="default"), seed(1, 0.5, how={**HOW, "resamples": 9})]
)
def test_what_does_not_belong_together_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        together([seed(0, 0.5), other])


def test_files_of_several_machines_are_read(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.json" for n in range(2)]
    for number, file in enumerate(files):
        file.write_text(json.dumps(seed(number, 0.5)))
    out = tmp_path / "all.json"
    command = [sys.executable, "-m", "bench.ablation", "--read", *map(str, files), "--out", str(out)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "held_out" in done.stdout
    assert json.loads(out.read_text())["code"] == ["c" * 64]


@pytest.mark.parametrize("text", [None, "no JSON", "{}"])
def test_what_is_no_seed_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=r"x\.json.*ablation-N\.json"):
        read_seed(path)
