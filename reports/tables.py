"""Tables and transcripts for the terminal, as rich renderables: the caller prints them with its own Console.

Text that a model or a task wrote is never parsed as markup and never reaches the terminal raw: every cell is a
`rich.text.Text` of `reports.text.visible`, so no escape sequence moves the cursor, sets the title or hides a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule as Line
from rich.table import Table
from rich.text import Text

from reports.columns import Columns
from reports.text import NONE, amounts, clip, estimate, interval, number, one_line, seconds, signed, visible
from reports.view import POLICIES, RoundView
from schemas.atif import ContentPart, ForeignEntry, ObservationResult, Step
from schemas.atif import Trajectory as Document
from schemas.attribution import DOES, Cost
from schemas.bucket import Bucket
from schemas.ledger import LedgerRow
from schemas.metrics import Decision, Estimate, Gate
from schemas.record import STAGES
from schemas.trajectory import Attempt, Turn
from schemas.verdict import Verdict

__all__ = [
    "PlanRow",
    "attempt",
    "estimate",
    "failures",
    "foreign",
    "interval",
    "ledger",
    "ledger_markdown",
    "matrix",
    "number",
    "plan",
    "seconds",
    "signed",
    "status",
    "summary",
]

_STYLE = {Decision.GO: "green", Decision.NO_GO: "red", Decision.INCONCLUSIVE: "yellow"}
_ROUTE_STYLE = {"infrastructure": "red", "undetermined": "dim"}
_VERDICT_STYLE = {"shrank": "green", "grew": "red", "unchanged": "dim"}
BODY_CHARS = 6000
STEPS_SHOWN = 200


@dataclass(frozen=True)
class PlanRow:
    """One stage of `postloop plan`. `action`: run, resume, reuse, up to date or skip; `cost`: unit -> amount."""

    stage: str
    action: str
    why: str
    cost: Mapping[str, float | None]


def _text(value: str, style: str = "", width: int = 0) -> Text:
    return Text(one_line(value, width) if width else visible(value), style=style)


def _badge(decision: Decision | None) -> Text:
    return Text(NONE, "dim") if decision is None else Text(decision.value, f"bold {_STYLE[decision]}")


def summary(view: RoundView) -> RenderableType:
    """What `postloop run` ends with: headline, criteria, gates, policies, alarms, cost."""
    parts: list[RenderableType] = [
        Line(_text(f"round {view.round}", "bold"), align="left", style="dim"),
        _headline(view),
    ]
    if view.criteria():
        parts += [Text(), _criteria(view)]
    if view.gates():
        parts += [Text(), _gates([(stage, gate) for stage, gate in view.gates()])]
    if view.suites():
        parts += [Text(), _policies(view)]
    parts += [
        _text(
            f"alarm {a.name} at step {a.step}: {number(a.value)} (threshold {number(a.threshold)}): {a.meaning}",
            "yellow",
        )
        for _, a in view.alarms()
    ]
    parts.append(Text(_cost_line(view), "dim"))
    return Group(*parts)


def _headline(view: RoundView) -> Text:
    line = Text()
    line.append(f"pass@1 {estimate(view.final())}", "bold")
    line.append(f"  {view.final_policy or NONE} on {view.main_suite}")
    for reference in ("base", "champion"):
        pair = view.against(reference)
        if pair is not None:
            line.append(f"\nagainst {reference} {estimate(pair.difference, sign=True)}")
    evaluation = view.evaluation
    met = None if evaluation is None else evaluation.goal_met
    answer = "no data" if met is None else "yes" if met else "not yet"
    line.append(f"\ngoal met: {answer}", "green" if met else "yellow")
    line.append(f"   promoted: {NONE if evaluation is None else 'yes' if evaluation.promoted else 'no'}")
    return line


def _criteria(view: RoundView) -> Columns:
    table = Columns("criterion", "suite", "metric", ("wanted", "right"), ("measured", "right"), "answer")
    answers = {Decision.GO: "holds", Decision.NO_GO: "fails", Decision.INCONCLUSIVE: "not shown"}
    for row in view.criteria():
        c = row.criterion
        wanted = f"≥ {number(c.at_least)}" if c.at_least is not None else f"≤ {number(c.at_most)}"
        answer = Text("no data", "dim") if row.decision is None else Text(answers[row.decision], _STYLE[row.decision])
        table.add_row(
            _text(c.name), _text(c.suite), _text(c.metric), Text(wanted), Text(estimate(row.estimate)), answer
        )
    return table


def _gates(gates: Sequence[tuple[str, Gate]]) -> Columns:
    table = Columns("gate", "stage", "decision", "because")
    for stage, gate in gates:
        owner = f" → {gate.owner} should act" if gate.owner else ""
        table.add_row(_text(gate.name), Text(stage), _badge(gate.decision), _text(gate.because + owner))
    return table


def _policies(view: RoundView) -> Columns:
    wide = [name for name in view.metric_names() if name.startswith("pass@")]
    names = [*dict.fromkeys([*wide[:1], *wide[-1:]]), "parse_rate"]
    table = Columns("suite", "policy", *((name, "right") for name in names))
    for suite in view.suites():
        for policy in POLICIES:
            result = view.result(suite, policy)
            if result is not None:
                cells = [Text(estimate(result.metrics.get(m))) for m in names]
                table.add_row(_text(suite), Text(policy), *cells)
    return table


def _cost_line(view: RoundView) -> str:
    def total(what: str, digits: int = 0) -> str:
        return number(view.total_cost(what), digits)

    return ", ".join(
        [
            seconds(view.total_cost("seconds")),
            f"{total('prompt tokens')} prompt and {total('generated tokens')} generated tokens",
            f"{total('executions')} sandbox executions",
            f"{total('sandbox CPU-s', 1)} CPU-s",
            f"{view.infrastructure_errors()} infrastructure errors",
        ]
    )


def status(views: Sequence[RoundView]) -> RenderableType:
    """One line a round: stages done, final pass@1, gates, goal, promotion, failures, time; and buckets that wait for a person."""
    right = (("failures / errors", "right"), ("time", "right"))
    table = Columns("round", "stages", ("pass@1", "right"), "gates", "goal met", "promoted", *right)
    for view in views:
        evaluation, backflow = view.evaluation, view.backflow
        met = evaluation.goal_met if evaluation else None
        table.add_row(
            Text(str(view.round)),
            _stage_marks(view),
            Text(estimate(view.final())),
            _gate_marks(view),
            Text(NONE if met is None else "yes" if met else "not yet"),
            Text(NONE if evaluation is None else "yes" if evaluation.promoted else "no"),
            Text(f"{NONE if backflow is None else backflow.failures} / {view.infrastructure_errors()}").append(
                f"\n{len(view.escalated())} escalated" if view.escalated() else "", "red"
            ),
            Text(seconds(view.total_cost("seconds"))),
        )
    return table if views else Text("no round yet: postloop run", "dim")


def _gate_marks(view: RoundView) -> Text:
    """How many say GO, and which do not."""
    gates = [gate for _, gate in view.gates()]
    marks = Text(f"{sum(gate.decision is Decision.GO for gate in gates)} GO" if gates else NONE)
    for gate in gates:
        if gate.decision is not Decision.GO:
            marks.append(f", {gate.decision.value}: {visible(gate.name)}", _STYLE[gate.decision])
    return marks


def _stage_marks(view: RoundView) -> Text:
    marks = Text()
    for stage in STAGES:
        record = view.records.get(stage)
        style = "dim" if record is None else "yellow" if record.skipped else "green"
        marks.append(f"{'·' if record is None else '–' if record.skipped else '✓'}{stage} ", style)
    return marks


def failures(
    buckets: Sequence[Bucket], examples: Mapping[str, Attempt] | None = None, view: RoundView | None = None
) -> RenderableType:
    """A row a bucket, and below the table why it was routed so, what that took, its material and an example of each.

    `examples`: trajectory id -> attempt, for what went wrong in the example. `view`: adds the shares of earlier rounds, what
    experiments took and left open, the first bad turn, and the material with the person who decided about it.
    """
    table = Columns(
        "id", "cause / family", ("size", "right"), ("share", "right"), ("measured", "right"), "route", whole=("id",)
    )
    for bucket in buckets:
        table.add_row(
            Text(bucket.id),
            _cause_cell(bucket),
            _size_cell(bucket),
            _stacked(bucket.share),
            _stacked(bucket.measured),
            _route_cell(bucket, view),
        )
    parts = [part for bucket in buckets for part in (Text(), _heading(bucket), _because(bucket, examples or {}, view))]
    return Group(table, *_ladder(view), *parts) if buckets else Text("no failures", "green")


def _size_cell(bucket: Bucket) -> Text:
    """With its bounds, where only a sample was looked at to the end."""
    cell = Text(f"{bucket.size}/{bucket.denominator}")
    if bucket.size_high and (bucket.size_low, bucket.size_high) != (bucket.size, bucket.size):
        cell.append(f"\n{bucket.size_low}–{bucket.size_high}", "dim")
    return cell


MATRIX_ROUNDS = 5  # beside each other on 80 columns


def matrix(view: RoundView) -> RenderableType:
    """Buckets beside the last rounds: size, whether it was treated, and how it had changed one round later."""
    rounds = [number for number, _ in view.trend("")][-MATRIX_ROUNDS:]
    table = Columns("cause / family", *((f"round {number}", "right") for number in rounds))
    for bucket in view.all_buckets():
        cells = [(number, one) for number, one in view.trend(bucket.id) if number in rounds]
        if any(one for _, one in cells):
            table.add_row(_cause_cell(bucket), *(_matrix_cell(view, number, one) for number, one in cells))
    return table if table.row_count else Text("no bucket in any round", "dim")


def _matrix_cell(view: RoundView, number: int, bucket: Bucket | None) -> Text:
    if bucket is None:
        return Text(NONE, "dim")
    change = view.change_of(bucket.id, number)
    treated = change.treated if change else bucket.treated
    cell = Text(f"{bucket.size}/{bucket.denominator}").append(f"\n{'treated' if treated else 'untreated'}", "dim")
    return cell.append(f"\n{change.verdict}", _VERDICT_STYLE.get(change.verdict, "yellow")) if change else cell


def _ladder(view: RoundView | None) -> list[RenderableType]:
    """What each rung took in the round, and how far the cheap ones reach."""
    rungs = view.ladder() if view else []
    table = Columns("rung", "", *((unit, "right") for unit in Cost.model_fields))
    for rung, cost in rungs:
        table.add_row(Text(rung.value), Text(DOES[rung], "dim"), *(Text(f"{n:,}") for _, n in cost))
    parts: list[RenderableType] = [Text(), table] if rungs else []
    settled = view.settled() if view else None
    return [*parts, Text(), Text(str(settled))] if settled else parts


def _cause_cell(bucket: Bucket) -> Text:
    cell = _text(bucket.cause, "bold").append(f"\n{visible(bucket.family)}", "not bold")
    if bucket.escalated:
        cell.append(f"\nescalated: {bucket.treated_in_vain} times in vain", "not bold red")
    return cell


def _heading(bucket: Bucket) -> Text:
    return Text(bucket.id).append(f"  {visible(bucket.cause)} in {visible(bucket.family)}", "bold")


def _because(bucket: Bucket, examples: Mapping[str, Attempt], view: RoundView | None) -> RenderableType:
    spent = [f"{number(amount, 0)} {unit}" for unit, amount in bucket.cost.items() if amount]
    facts = _facts(
        ("rule", visible(bucket.rule)),
        ("open", ", ".join(map(visible, bucket.undecided)) or None),
        ("cost", ", ".join(spent) or None),
        ("measured", _trend(view, bucket) if view else None),
        ("material", "\n".join(_material_lines(view, bucket)) or None if view else None),
        ("example", _example(bucket, examples)),
        ("bad turn", _bad_turn(bucket, examples, view) if view else None),
    )
    return Padding(facts, (0, 0, 0, 2))


def _route_cell(bucket: Bucket, view: RoundView | None) -> Text:
    owner, decision = view.owner(bucket) if view else (bucket.route.value, None)
    cell = Text(owner, _ROUTE_STYLE.get(owner, "cyan"))
    if decision is not None:
        cell.append(f" ({one_line(decision.who, 20)})", "dim")
    elif bucket.overridden_by:
        cell.append(f" ({visible(bucket.overridden_by)})", "dim")
    return cell


def _trend(view: RoundView, bucket: Bucket) -> str | None:
    """Measured shares of the last four rounds, oldest first; nothing where there is one round."""
    shares = [NONE if one is None else number(one.measured.value, 2) for _, one in view.trend(bucket.id)][-4:]
    return " → ".join(shares) if len(shares) > 1 and {*shares} != {NONE} else None


def _material_lines(view: RoundView, bucket: Bucket) -> list[str]:
    word = view.approval(bucket.id)
    said = f", {'approved' if word.approve else 'rejected'} by {one_line(word.who, 20)}" if word is not None else ""
    return [
        f"{f'{item.amount} {item.kind}' if item.amount else item.kind}: {'approved' if item.approved else 'waits'}{said}"
        for item in view.material()
        if item.bucket == bucket.id
    ]


LEDGER = (
    "round", "bucket", "size", "measured", "route", "rule", "material", "one round later", "in vain", "experiments took",
    "treatment took",
)  # fmt: skip


def ledger_rows(rows: Sequence[LedgerRow]) -> list[tuple[str, ...]]:
    """The cells under LEDGER, as plain text: for the table and for the file."""
    return [
        (
            str(row.round),
            f"{row.bucket} {row.cause} in {row.family}",
            f"{row.size}/{row.denominator}",
            f"{number(row.measured.value, 2)} {interval(row.measured, 2)}".strip(),
            row.route.value + (f" (decision {row.decided_by})" if row.decided_by else ""),
            row.rule,
            ", ".join(row.material) if row.treated and row.material else "untreated",
            f"{row.verdict} {signed(row.difference.value, 2) if row.difference and row.difference.n else ''}".strip()
            if row.verdict
            else NONE,
            f"{row.treated_in_vain}{', escalated' if row.escalated else ''}" if row.treated_in_vain else NONE,
            ", ".join(amounts(row.cost)) or NONE,
            ", ".join(amounts({**row.treatment, **row.allocated})) or NONE,
        )
        for row in rows
    ]


def ledger(rows: Sequence[LedgerRow]) -> RenderableType:
    """Every bucket of every round: what it was, what was done, and what came of it one round later; below the table, what each
    treatment took. Rules and experiments are in the file: a terminal has no room for them."""
    table = Columns("round", "cause / family", "size", "measured", "route / material", "one round later")
    for row, cells in zip(rows, ledger_rows(rows), strict=True):
        _, _, size, _, route, _, material, later, vain, *_ = map(visible, cells)
        table.add_row(
            Text(str(row.round)),
            _text(row.cause, "bold").append(f"\n{visible(row.family)}\n{visible(row.bucket)}", "not bold"),
            Text(size),
            _stacked(row.measured),
            Text(route, _ROUTE_STYLE.get(row.route.value, "cyan")).append(f"\n{material}", "not bold dim"),
            Text(later).append(f"\nin vain: {vain}" if row.treated_in_vain else "", "red" if row.escalated else "dim"),
        )
    took = [(row, words) for row in rows if (words := amounts({**row.treatment, **row.allocated}))]
    heads = [_text(f"round {row.round}: {row.cause} in {row.family}, its treatment took", "bold") for row, _ in took]
    parts = [part for head, (_, words) in zip(heads, took, strict=True) for part in (head, _body(", ".join(words)))]
    return Group(table, *parts) if rows else Text("no bucket in any round", "dim")


def ledger_markdown(rows: Sequence[LedgerRow], name: str) -> str:
    """The same for a file. Cells cannot leave their column, whatever a name holds."""
    lines = [
        f"# Ledger of {one_line(name)}",
        "",
        "Derived from the records; `postloop failures --ledger` writes it anew.",
        "",
    ]
    lines += [f"| {' | '.join(LEDGER)} |", f"|{'---|' * len(LEDGER)}"]
    lines += [f"| {' | '.join(_markdown(cell) for cell in cells)} |" for cells in ledger_rows(rows)]
    return "\n".join(lines) + "\n"


def _markdown(cell: str) -> str:
    return re.sub(r"([|\\`<>*_\[\]])", r"\\\1", one_line(cell, 400))


def _stacked(of: Estimate) -> Text:
    return Text(number(of.value, 2)).append(f"\n{interval(of, 2)}", "dim")


def _example(bucket: Bucket, examples: Mapping[str, Attempt]) -> str:
    head, _, digits = bucket.example.rpartition("-")
    name = f"{head}-{digits[:8]}" if head else digits  # the start of an id names it
    found = examples.get(bucket.example)
    if found is None:
        return visible(name)
    failed = next((check for check in found.verdict.checks if not check.passed), None)
    why = failed.detail or failed.name if failed else found.verdict.reason or found.trajectory.stop
    return f"{visible(name)}: {one_line(why, 80)}"


def _bad_turn(bucket: Bucket, examples: Mapping[str, Attempt], view: RoundView) -> str | None:
    """The first one that went wrong in the example, where that is known, and what it says."""
    said, found = view.said_of(bucket), examples.get(bucket.example)
    turns = found.trajectory.turns if found else []
    if said is None or said.first_bad_turn is None or said.first_bad_turn >= len(turns):
        return None
    turn = turns[said.first_bad_turn]
    problem = turn.parse_error or turn.tool_error or turn.forbidden
    what = f"{one_line(problem, 80)}: " if problem else ""
    return f"{said.first_bad_turn + 1} of {len(turns)}: {what}{one_line(turn.text, 120)}"


def attempt(row: Attempt) -> RenderableType:
    """The transcript for `postloop show ID`: what was asked, written and observed, the verdict, the reward's parts."""
    t = row.trajectory
    facts = _facts(
        ("task", t.task_id),
        ("family", f"{t.family} ({t.split.value})"),
        ("purpose", f"{t.purpose.value}, seed {t.seed}"),
        ("sampling", f"{t.sampling.engine}, temperature {t.sampling.temperature:g}, top_p {t.sampling.top_p:g}"),
        ("hint", t.hint),
        ("noise", str(t.noise) if t.noise else None),
        ("status", t.status if t.reason is None else f"{t.status}: {t.reason}"),
        ("stop", t.stop),
    )
    parts: list[RenderableType] = [Line(_text(t.id, "bold"), align="left", style="dim"), facts]
    for turn in t.turns:
        parts += _turn(turn)
    for path, content in sorted(t.outcome.items()):
        parts += [_text(f"outcome: {path}", "bold"), _body(content)]
    parts += _verdict(row.verdict, "verdict")
    if row.audit is not None:
        parts += _verdict(row.audit, "audit verdict")
    pieces = " ".join(f"{visible(name)} {signed(value)}" for name, value in row.reward.parts.items())
    parts.append(Text(f"reward {number(row.reward.value)}", "bold").append(f"  {pieces}", "dim"))
    return Group(*parts)


def _facts(*pairs: tuple[str, str | None]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in pairs:
        if value is not None:
            table.add_row(Text(name, "dim"), _text(value))
    return table


def _body(text: str, style: str = "") -> Padding:
    return Padding(_text(clip(text, BODY_CHARS), style), (0, 0, 0, 4))


def _turn(turn: Turn) -> list[RenderableType]:
    parts: list[RenderableType] = [Line(Text(f"turn {turn.index + 1}"), align="left", style="dim")]
    for message in turn.messages:
        parts += [_text(message.get("role", "?"), "bold blue"), _body(message.get("content", ""))]
    parts += [Text(f"model ({len(turn.completion_ids)} tokens, stop {turn.stop})", "bold magenta"), _body(turn.text)]
    if turn.call is not None:
        parts += [Text("call", "bold"), _body(_json(turn.call))]
    for name, problem in (
        ("parse error", turn.parse_error),
        ("tool error", turn.tool_error),
        ("forbidden", turn.forbidden),
    ):
        if problem is not None:
            parts.append(_text(f"{name}: {problem}", "red"))
    if any(hit != "clean" for hit in turn.noise):
        parts.append(_text(f"noise: {', '.join(turn.noise)}", "red"))
    if turn.visible is not None:
        parts += [Text("visible tests", "bold"), _body(_json(turn.visible))]
    if turn.observation is not None:
        parts += [
            Text("observation" + (" (truncated)" if turn.observation_truncated else ""), "bold"),
            _body(turn.observation),
        ]
    return parts


def foreign(entry: ForeignEntry, document: Document) -> RenderableType:
    """The transcript of an imported document, which says of itself what it says: no verdict or reward of ours."""
    facts = _facts(
        ("foreign", f"imported from {entry.source}; nothing runs, trains or measures on it"),
        ("version", document.schema_version),
        ("agent", f"{document.agent.name} {document.agent.version}"),
        ("model", document.agent.model_name),
        ("session", document.session_id),
        ("trajectory", document.trajectory_id),
        ("notes", document.notes),
    )
    parts: list[RenderableType] = [Line(_text(entry.id, "bold"), align="left", style="dim"), facts]
    for step in document.steps[:STEPS_SHOWN]:
        parts += _step(step)
    left = len(document.steps) - STEPS_SHOWN
    parts += [Text(f"… {left} more steps", "dim")] * (left > 0)
    for name in ("final_metrics", "extra"):
        value = getattr(document, name)
        if value is not None:
            plain = value if isinstance(value, dict) else value.model_dump(mode="json", exclude_unset=True)
            parts += [Text(name, "bold"), _body(_json(plain))]
    embedded = document.subagent_trajectories or []
    parts += [
        _text(f"embedded trajectory {one.trajectory_id}: {len(one.steps)} steps") for one in embedded[:STEPS_SHOWN]
    ]
    return Group(*parts)


def _step(step: Step) -> list[RenderableType]:
    copied = ", copied" if step.is_copied_context else ""
    parts: list[RenderableType] = [
        Line(Text(f"step {step.step_id}: {step.source}{copied}"), align="left", style="dim"), _body(_content(step.message)),
    ]  # fmt: skip
    if step.reasoning_content is not None:
        parts += [Text("reasoning", "bold"), _body(step.reasoning_content, "dim")]
    for call in step.tool_calls or ():
        parts += [_text(f"call {call.tool_call_id}: {call.function_name}", "bold"), _body(_json(call.arguments))]
    for result in step.observation.results if step.observation else ():
        parts += _result(result)
    return parts


def _result(result: ObservationResult) -> list[RenderableType]:
    of = f" of {result.source_call_id}" if result.source_call_id is not None else ""
    refs = [
        _text(f"    subagent {ref.trajectory_id or ref.trajectory_path}")
        for ref in result.subagent_trajectory_ref or ()
    ]
    return [_text(f"observation{of}", "bold"), _body(_content(result.content)), *refs]


def _content(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(f"[{part.type} {part.source.path}]" if part.source else str(part.text) for part in content)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _verdict(verdict: Verdict, name: str) -> list[RenderableType]:
    answer = verdict.status.value if verdict.passed is None else "passed" if verdict.passed else "failed"
    style = "green" if verdict.passed else "red" if verdict.passed is False else "yellow"
    head = Text(f"{name}: ", "bold").append(answer, f"bold {style}").append(f"  score {number(verdict.score)}")
    if verdict.limit_hit:
        head.append(f"  limit {verdict.limit_hit}", "red")
    parts: list[RenderableType] = [head]
    table = Columns("check", "role", "answer", "detail")
    for check in verdict.checks:
        table.add_row(
            _text(check.name),
            Text(check.role),
            Text("pass" if check.passed else "fail", "green" if check.passed else "red"),
            _text(check.detail, width=200),
        )
    if verdict.checks:
        parts.append(Padding(table, (0, 0, 0, 4)))
    parts += [_text(f"    violation {v.kind}: {v.detail}", "red") for v in verdict.violations]
    if verdict.reason:
        parts.append(_text(f"    {verdict.reason}", "yellow"))
    return parts


def plan(rows: Sequence[PlanRow]) -> RenderableType:
    """What would run, why, and what it should cost; "up to date" when no row says otherwise."""
    if all(row.action == "up to date" for row in rows):
        return Text("up to date", "green")
    units = list(dict.fromkeys(unit for row in rows for unit in row.cost))
    table = Columns("stage", "action", "why", *((("time" if unit == "seconds" else unit), "right") for unit in units))
    for row in rows:
        style = "dim" if row.action in ("up to date", "reuse") else "bold"
        cells = [Text(_amount(unit, row.cost.get(unit))) for unit in units]
        table.add_row(_text(row.stage, style), _text(row.action, style), _text(row.why), *cells)
    total = [Text(_amount(unit, _sum(rows, unit)), "bold") for unit in units]
    if units:
        table.add_row(Text("all", "bold"), Text(), Text(), *total)
    return table


def _sum(rows: Sequence[PlanRow], unit: str) -> float | None:
    known = [cost for row in rows if (cost := row.cost.get(unit)) is not None]
    return sum(known) if known else None


def _amount(unit: str, value: float | None) -> str:
    return seconds(value) if unit == "seconds" else number(value, 0)
