"""One round as one HTML file: inline style, inline SVG, no script, no reference to anything outside.

Everything shown may be hostile. Three walls: the template engine escapes every value, `finalize` makes control and
direction-changing characters visible first, and a Content-Security-Policy forbids scripts and loading. The file depends
on the view alone, so two renders are the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reports import plots, text
from reports.view import POLICIES, RoundView
from schemas.attribution import DOES
from schemas.bucket import Bucket, BucketChange, Route
from schemas.metrics import Decision
from schemas.record import STAGES
from schemas.trajectory import Attempt

TEMPLATES = Path(__file__).parent / "templates"
ROUTE_CSS = {route.value: f"c{index}" for index, route in enumerate(Route)}
POLICY_CSS = {"base": "c6", "champion": "c1", "sft": "c2", "rl": "c0"}
LAST_TURN_CHARS = 1500
CURVES: dict[str, tuple[str, str]] = {
    "reward": ("Reward", "mean a trajectory"),
    "entropy": ("Entropy", "nats a token"),
    "length": ("Length", "completion tokens"),
    "kl": ("KL", "nats a token, to the phase's start"),
    "zero_spread": ("Zero spread", "share of sampled groups with equal rewards"),
    "grad_norm": ("Gradient norm", "before clipping"),
    "clip_share": ("Clipped", "share of tokens"),
    "invalid_calls": ("Invalid calls", "share of turns"),
    "solved": ("Solved", "share of trajectories"),
    "loss": ("Loss", ""),
    "sampler_gap": ("Sampler gap", "nats a token"),
}


def render(view: RoundView) -> str:
    """The whole page. Raises nothing on missing stages: they are shown as not run."""
    return _environment().get_template("round.html.j2").render(**_context(view))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=text.number,
        signed=text.signed,
        interval=text.interval,
        estimate=text.estimate,
        seconds=text.seconds,
        one_line=text.one_line,
        clip=text.clip,
        size=_size,
        css=_decision_css,
    )
    return environment


def _finalize(value: Any) -> Any:
    if value is None:
        return text.NONE
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.visible(value)
    return value


def _size(count: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _decision_css(decision: Decision | None) -> str:
    return (
        {Decision.GO: "go", Decision.NO_GO: "nogo", Decision.INCONCLUSIVE: "maybe"}.get(decision, "none")
        if decision
        else "none"
    )


def _context(view: RoundView) -> dict[str, Any]:
    return {
        "view": view,
        "stages": STAGES,
        "policies": POLICIES,
        "policy_css": POLICY_CSS,
        "route_css": ROUTE_CSS,
        "costs": view.costs(),
        "verdict": _verdict(view),
        "forest": _policy_forest(view),
        "paired_forest": _paired_forest(view),
        "family_forests": _family_forests(view),
        "history_forest": _history_forest(view),
        "loss_curve": plots.curve(view.sft.loss, "training loss") if view.sft else plots.EMPTY,
        "rl_curves": _rl_curves(view),
        "buckets": [_bucket_row(view, bucket) for bucket in view.backflow.buckets] if view.backflow else [],
        "matrix": _matrix(view),
        "bucket_flow": _bucket_flow(view),
        "bucket_names": _bucket_names(view),
        "took": {c.bucket: text.amounts({**c.cost, **c.allocated(view.telemetry)}) for c in _changes(view)},
        "share_bar": plots.share_bar,
        "rung_does": DOES,
    }


def _verdict(view: RoundView) -> dict[str, str]:
    """The three answers of the headline: text and colour of each."""
    evaluation = view.evaluation
    met = evaluation.goal_met if evaluation else None
    promoted = bool(evaluation and evaluation.promoted)
    return {
        "goal": "–" if evaluation is None else "no data" if met is None else "yes" if met else "not yet",
        "goal_css": "go" if met else "nogo" if met is False else "none",
        "promoted": "–" if evaluation is None else "yes" if promoted else "no",
        "promoted_css": "go" if promoted else "none" if evaluation is None else "maybe",
    }


def _policy_forest(view: RoundView) -> Markup:
    rows = [
        plots.Row(policy, result.metrics.get("pass@1"), POLICY_CSS[policy], suite)
        for suite in view.suites()
        for policy in POLICIES
        if (result := view.result(suite, policy)) is not None
    ]
    return plots.forest(rows, "pass@1 of each policy on each suite, 95% intervals")


def _paired_forest(view: RoundView) -> Markup:
    rows = [
        plots.Row(
            f"{pair.candidate} − {pair.reference}",
            pair.difference,
            POLICY_CSS.get(pair.candidate, "c0"),
            f"{pair.suite} · {pair.metric}",
        )
        for pair in (view.evaluation.paired if view.evaluation else [])
    ]
    return plots.forest(rows, "paired differences, 95% intervals", unit=False, zero=True)


def _family_forests(view: RoundView) -> list[Markup]:
    """Base and final policy on each family of the promotion suite, in two columns."""
    policies = [policy for policy in ("base", view.final_policy) if policy]
    found = {policy: view.result(view.main_suite, policy) for policy in dict.fromkeys(policies)}
    families = sorted({family for result in found.values() if result for family in result.by_family})
    half = (len(families) + 1) // 2
    columns = []
    for part in (families[:half], families[half:]):
        rows = [
            plots.Row(policy, result.by_family.get(family), POLICY_CSS[policy], family)
            for family in part
            for policy, result in found.items()
            if result is not None
        ]
        columns.append(plots.forest(rows, "pass@1 by family, 95% intervals"))
    return [column for column in columns if column]


def _history_forest(view: RoundView) -> Markup:
    past = view.history()
    if len(past) < 2:
        return plots.EMPTY
    rows = [plots.Row(f"round {old.round} · {old.final_policy or text.NONE}", old.final(), "c0") for old in past]
    return plots.forest(rows, "pass@1 of the final policy of each round")


def _rl_curves(view: RoundView) -> list[tuple[str, str, Markup, str]]:
    """Title, unit, plot, last value of each curve: the usual ones first, the others by name."""
    curves = view.rl.curves if view.rl else {}
    alarms = {alarm.name: alarm.threshold for alarm in (view.rl.alarms if view.rl else [])}
    names = [name for name in CURVES if name in curves] + sorted(set(curves) - set(CURVES))
    rows = []
    for name in names:
        title, unit = CURVES.get(name, (name.replace("_", " "), ""))
        last = next((value for value in reversed(curves[name]) if value is not None), None)
        rows.append((title, unit, plots.curve(curves[name], title, alarms.get(name)), text.number(last)))
    return rows


def _bucket_row(view: RoundView, bucket: Bucket) -> dict[str, Any]:
    example, said = view.example(bucket), view.said_of(bucket)
    points = [(number, one.measured if one else None) for number, one in view.trend(bucket.id)]
    return {
        "bucket": bucket,
        "example": example,
        "turn": _shown_turn(example, said.first_bad_turn if said else None),
        "failing": _first_failing(example),
        "said": said,
        "trend": plots.trend(points, ROUTE_CSS[bucket.route.value]),
        "owner": view.owner(bucket),
        "approval": view.approval(bucket.id),
        "material": [item for item in view.material() if item.bucket == bucket.id],
    }


def _matrix(view: RoundView) -> dict[str, Any]:
    """Rounds beside buckets: size, share as a shade, what was done, and how it had changed one round later."""
    rounds = [number for number, _ in view.trend("")]
    rows = []
    for bucket in view.all_buckets():
        cells = []
        for number, one in view.trend(bucket.id):
            share = one.measured.value if one else None
            cells.append({"bucket": one, "shade": f"{share or 0:.3f}", "change": view.change_of(bucket.id, number)})
        rows.append((bucket, cells))
    return {"rounds": rounds, "rows": rows}


def _shown_turn(attempt: Attempt | None, bad: int | None) -> tuple[str, str] | None:
    """Caption and text of the first bad turn where it is known, else of the last one."""
    if attempt is None or not attempt.trajectory.turns:
        return None
    turns = attempt.trajectory.turns
    known = bad is not None and bad < len(turns)
    turn = turns[bad] if known and bad is not None else turns[-1]
    caption = f"{'First bad turn' if known else 'Last turn'}: {turn.index + 1} of {len(turns)}"
    return caption, text.clip(turn.text, LAST_TURN_CHARS)


def _first_failing(attempt: Attempt | None) -> str | None:
    """First failed check with its detail; else the violation, the limit or the reason that stopped it."""
    if attempt is None:
        return None
    verdict = attempt.verdict
    failed = next((check for check in verdict.checks if not check.passed), None)
    if failed is not None:
        return f"{failed.name} ({failed.role}): {failed.detail}" if failed.detail else f"{failed.name} ({failed.role})"
    if verdict.violations:
        return f"{verdict.violations[0].kind}: {verdict.violations[0].detail}"
    return f"limit: {verdict.limit_hit}" if verdict.limit_hit else verdict.reason


def _bucket_flow(view: RoundView) -> Markup:
    buckets = view.backflow.buckets if view.backflow else []
    owned = [(bucket, Route(view.owner(bucket)[0])) for bucket in buckets]
    ordered = sorted(owned, key=lambda one: (list(Route).index(one[1]), -one[0].size, one[0].id))
    links = [plots.Link(f"{b.cause} · {b.family}", to.value, b.size, ROUTE_CSS[to.value]) for b, to in ordered]
    return plots.flow(links, "failures from buckets to routes")


def _changes(view: RoundView) -> list[BucketChange]:
    return view.backflow.changes if view.backflow else []


def _bucket_names(view: RoundView) -> dict[str, str]:
    return {b.id: f"{b.cause} · {b.family}" for b in (view.backflow.buckets if view.backflow else [])}
