"""All recorded failures in the buckets of one set of rules."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tiny_loop import Cli, Finished

from stages.backflow import EVIDENCE, read_attributions

ALL_GOAL = """\
- {id: anything, cause: undetermined, route: undetermined, when: {}, because: all alike}
"""


def recorded(finished: Finished, number: int) -> Counter[tuple[str, str]]:
    record = finished.space.read(number, "backflow")
    folder = finished.space.open_artifact(record.artifacts["attributions"])  # type: ignore[union-attr]
    assert (folder / EVIDENCE).is_file()
    return Counter((one.cause, one.evidence.family) for one in read_attributions(folder))


def test_the_rules_of_the_rounds_say_what_the_rounds_said(cli: Cli, finished: Finished) -> None:
    told = json.loads(cli("triage", "-w", finished.root, "--json").stdout)
    then = recorded(finished, 1) + recorded(finished, 2)
    assert told["rounds"] == [1, 2]
    assert told["failures"] == then.total() == sum(told["rules"].values())
    assert {(one["cause"], one["family"]): one["recorded"] for one in told["buckets"]} == then
    assert all(one["recorded"] == one["now"] for one in told["buckets"])
    shown = cli("triage", "-w", finished.root)
    assert shown.returncode == 0
    assert f"{then.total()} failures of round 1, 2" in shown.stdout


def test_other_rules_move_failures_and_change_nothing(cli: Cli, finished: Finished, tmp_path: Path) -> None:
    routes = tmp_path / "routes.yaml"
    routes.write_text(ALL_GOAL)
    told = json.loads(cli("triage", "-w", finished.root, "--routes", routes, "--round", "1", "--json").stdout)
    then = recorded(finished, 1)
    now = Counter({one["cause"]: 0 for one in told["buckets"]})
    for one in told["buckets"]:
        now[one["cause"]] += one["now"]
    assert told["rounds"] == [1]
    assert now["undetermined"] > 0
    assert now.total() == then.total() == sum(one["recorded"] for one in told["buckets"])


def test_a_round_without_attributions_is_named(cli: Cli, finished: Finished) -> None:
    refused = cli("triage", "-w", finished.root, "--round", "7")
    assert refused.returncode == 2
    assert "round 7: no attributions; rounds that have them: 1, 2" in refused.stderr
