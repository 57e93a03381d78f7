"""What is found of a round's image when a bucket says that it drifted."""

from __future__ import annotations

from pathlib import Path

from bench.planted_faults import Site, made, repairs
from evals.proposals import Seen, proposals
from schemas.bucket import Route
from stages.equipment import image_of
from stages.material import _environment
from tests import fabricated


def test_a_file_that_changed_in_the_image_is_the_difference_that_a_person_sees(tmp_path: Path) -> None:
    """In a cache of its own: other tests use the image."""
    file = "opt/prices.txt"
    site = Site(tmp_path, tmp_path / "cache", "rules", 100, 4)
    ctx = made(site, "loop", repairs(site, 2, 2), until="goal", environment={"files": {file: "nail 3\n"}})
    goal = ctx.record("goal")
    drifted, other = fabricated.bucket("drift", Route.DATA), fabricated.bucket("unstable", Route.DATA)
    path = image_of(goal.spec, ctx.cache, ctx.workspace.root)[1] / file
    assert _environment(ctx, goal, [other]) == ([], [])
    was, now = _environment(ctx, goal, [drifted])
    assert was == now
    path.chmod(0o644)
    path.write_text("nail 4\n")
    seen = Seen(goal, {}, {}, {}, _environment(ctx, goal, [drifted]))
    lines = proposals([drifted], seen)[drifted.id].difference.splitlines()
    changed = [line for line in lines[2:] if line.startswith(("-", "+"))]
    assert [line[:6] for line in changed] == ["-layer", "+layer", "-file ", "+file "]
    assert all(file in line for line in changed[2:])
    assert changed[0] == f"-layer {goal.environment.layer}"


def test_without_a_drift_the_image_is_not_read(tmp_path: Path) -> None:
    space = fabricated.workspace(tmp_path / "loop")
    fabricated.leave(space, 1, [])
    ctx = fabricated.context(space, 1)
    assert _environment(ctx, ctx.record("goal"), [fabricated.bucket("protocol")]) == ([], [])
    assert not ctx.cache.exists()
