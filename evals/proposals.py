"""What a person is asked to decide about a bucket: the thing to change, the change as a difference, the fixture behind it.

A proposal is never applied unattended. Where the change can be computed it is a unified difference of sections of goal.yaml;
where a person has to write it (a bundle, a task, an environment) one line says what has to hold afterwards, with the
attempt that shows that it does not yet.

Not covered: writing verifiers, tasks or statements.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evals.contamination import near_copies
from evals.material import CONTAMINATION, Proposal, is_proposed
from evals.rewards import price
from schemas.base import Json
from schemas.bucket import Bucket, Evidence
from schemas.goal import GoalRecord, GoalSpec
from schemas.rewards import RewardRules
from schemas.task import Kind, Split, Task
from schemas.trajectory import Attempt
from schemas.verdict import Status, Verdict

SHOWN = 3  # fixtures, tasks or drifts that a proposal names
LINES, WIDTH = 60, 200  # of a difference that is not our own text
MARGIN = 0.05  # of reward, by which a pass must be worth more than the failure it was priced below
_VERIFIER = ("verifier_hole", "verifier_too_strict")


@dataclass(frozen=True)
class Seen:
    """What proposals are made of: the round's goal and tasks, and the dev attempts that chose the buckets."""

    goal: GoalRecord
    tasks: Mapping[str, Task]
    attempts: Mapping[str, Attempt]
    evidence: Mapping[str, Evidence]
    environment: tuple[Sequence[str], Sequence[str]] = ((), ())  # as pinned and as found now, in lines

    def members(self, bucket: Bucket) -> list[Attempt]:
        """The example first."""
        ids = [bucket.example, *(member for member in bucket.members if member != bucket.example)]
        return [self.attempts[member] for member in ids if member in self.attempts]

    def facts(self, bucket: Bucket) -> list[Evidence]:
        return [self.evidence[member] for member in bucket.members if member in self.evidence]


def proposals(buckets: Iterable[Bucket], seen: Seen) -> dict[str, Proposal]:
    """Bucket id -> proposal, of every bucket that a person must decide on."""
    return {bucket.id: _propose(bucket, seen) for bucket in buckets if is_proposed(bucket)}


def _propose(bucket: Bucket, seen: Seen) -> Proposal:
    if bucket.cause in _VERIFIER:
        return _verifier(bucket, seen)
    if bucket.cause == "reward_conflict":
        return _rewards(bucket, seen)
    if bucket.cause in CONTAMINATION:
        return _contamination(bucket, seen)
    makers = {
        "drift": _drift, "unstable": _unstable, "wrong_task": _task, "wrong_statement": _statement, "tool_chain": _chain,
        "unscored": _unscored, "wrong_setting": _setting, "no_room": _room, "wrong_suite": _suite, "observation_cut": _chain,
        "harness_broken": _chain,
    }  # fmt: skip
    return makers[bucket.cause](bucket, seen) if bucket.cause in makers else _other(bucket, seen)


# --- verifiers


def _verifier(bucket: Bucket, seen: Seen) -> Proposal:
    """The contested attempts as fixtures, and the audit verifier in the training verifier's place as the first try.

    It is no audit verifier any more then: it would contest nothing of its own, and the bucket would be gone by construction.
    """
    contested = [attempt for attempt in seen.members(bucket) if attempt.audit is not None]
    kinds = [seen.tasks[a.trajectory.task_id].kind for a in contested if a.trajectory.task_id in seen.tasks]
    where, now = _judge_of(seen.goal.spec, kinds[0] if kinds else "function")
    audit, fixtures = seen.goal.spec.audit_verifier, [_fixture(attempt) for attempt in contested[:SHOWN]]
    change = (
        ""
        if audit in (None, now)
        else _difference(f"{where}: {now}\naudit_verifier: {audit}", f"{where}: {audit}\naudit_verifier: null")
    )
    must = "must fail" if bucket.cause == "verifier_hole" else "must pass"
    lines = [*([change] if change else []), *(f"fixture, {must}: {fixture}" for fixture in fixtures)]
    return Proposal(
        subject=f"{where} {now}",
        difference="\n".join(lines),
        then="repair the bundle, or take the audit verifier: "
        + (f"once approved, `postloop apply {bucket.id[:4]}`" if change else "`postloop rescore --verifier REF`")
        + " judges the old samples first"
        + ("; then declare another audit_verifier, else nothing measures this bucket any more" if change else ""),
        edits={where: audit, "audit_verifier": None} if change else {},
    )


def _judge_of(spec: GoalSpec, kind: Kind) -> tuple[str, str]:
    own = spec.verifier_of.get(kind)
    return ("verifier", spec.verifier) if own is None else (f"verifier_of.{kind}", own)


def _fixture(attempt: Attempt) -> str:
    trajectory = attempt.trajectory
    sides = [f"{name} {_says(verdict)}" for name, verdict in (("training", attempt.verdict), ("audit", attempt.audit))]
    return f"trajectory {trajectory.id}, task {trajectory.task_id}, outcome {trajectory.outcome_digest}: {', '.join(sides)}"


def _says(verdict: Verdict | None) -> str:
    """`passes`, or the first check or violation that it failed by."""
    if verdict is None or verdict.passed:
        return "passes"
    failed = next((f"{check.name}: {check.detail}" for check in verdict.checks if not check.passed), None)
    violated = next((f"{one.kind}: {one.detail}" for one in verdict.violations), None)
    return f"fails by {(failed or violated or str(verdict.reason)).rstrip(': ')}"


# --- reward rules


def _rewards(bucket: Bucket, seen: Seen) -> Proposal:
    """A pass that is worth no more than a failure of its task, and one number that would put them right."""
    rules = seen.goal.spec.rewards
    for failure in seen.members(bucket):
        better = _priced_below(failure, seen.attempts.values())
        if better is None:
            continue
        parts = conflicting(better, failure)
        change = repaired(rules, better, failure)
        said = "" if change is None else _difference(_section(rules), _section(change), "goal.yaml: rewards")
        return Proposal(
            subject=f"rewards {rules.name} {rules.version}: {', '.join(parts) or 'no single part'}",
            difference="\n".join(filter(None, [said, _conflict(better, failure)])),
            then=f"once approved, `postloop apply {bucket.id[:4]}` writes it and prices the old samples anew"
            if change
            else "no single number puts both right; `postloop rescore --rules REF` prices the old samples first",
            edits={} if change is None else _moved(rules, change),
        )
    return Proposal(f"rewards {rules.name} {rules.version}", "no pass of a member's task is worth less than it")


def _priced_below(failure: Attempt, attempts: Iterable[Attempt]) -> Attempt | None:
    """The pass of the same task that is worth least, if that is not more than the failure."""
    value, task = failure.reward.value, failure.trajectory.task_id
    passes = [a for a in attempts if a.trajectory.task_id == task and a.verdict.passed and a.reward.value is not None]
    worst = min(passes, key=lambda a: (a.reward.value or 0.0, a.trajectory.id), default=None)
    if value is None or worst is None or worst.reward.value is None or worst.reward.value > value:
        return None
    return worst


def conflicting(better: Attempt, failure: Attempt) -> list[str]:
    """Parts in which the failure gets more than the pass, the largest difference first."""
    mine, other = better.reward.parts, failure.reward.parts
    gaps = {name: other.get(name, 0.0) - mine.get(name, 0.0) for name in sorted(mine.keys() | other.keys())}
    return [name for name in sorted(gaps, key=lambda name: -gaps[name]) if gaps[name] > 1e-9 and name != "clamp"]


def repaired(rules: RewardRules, better: Attempt, failure: Attempt) -> RewardRules | None:
    """The rules with one number moved towards 0, under which the pass is worth MARGIN more; None when no single one does."""
    for part in conflicting(better, failure):
        name = "invalid_call_cap" if part == "invalid_call" else part
        number = getattr(rules, name, None)
        if part == "outcome" or not isinstance(number, float):
            continue  # the outcome is never the number to lower
        for share in (0.75, 0.5, 0.25, 0.0):
            changed = rules.model_copy(update={name: round(number * share, 4), "version": _next(rules.version)})
            values = [_priced(attempt, changed) for attempt in (better, failure)]
            if values[0] >= values[1] + MARGIN:
                return changed
    return None


def _moved(before: RewardRules, after: RewardRules) -> dict[str, Json]:
    """The numbers that differ, and the version."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return {f"rewards.{name}": value for name, value in new.items() if old[name] != value}


def _priced(attempt: Attempt, rules: RewardRules) -> float:
    value = price(attempt.trajectory.id, attempt.verdict, attempt.trajectory.conduct, rules).value
    return float("-inf") if value is None else value


def _next(version: str) -> str:
    return str(int(version) + 1) if version.isdigit() else f"{version}.1"


def _section(rules: RewardRules) -> str:
    """As goal.yaml has it: every number, so that the section can be put in whole."""
    return "\n".join(["rewards:", *(f"  {k}: {json.dumps(v)}" for k, v in rules.model_dump(mode="json").items())])


def _conflict(better: Attempt, failure: Attempt) -> str:
    rows = [(label, a) for label, a in (("pass", better), ("failure", failure))]
    said = [
        f"{label} {a.trajectory.id} is worth {a.reward.value:g} "
        f"({', '.join(f'{name} {value:g}' for name, value in sorted(a.reward.parts.items()) if value)})"
        for label, a in rows
    ]
    return f"fixture, task {failure.trajectory.task_id}: {'; '.join(said)}"


# --- environments, tasks, statements


def _drift(bucket: Bucket, seen: Seen) -> Proposal:
    """The pin against what is found now. To accept it is to lock it anew: another name is another environment, which the next
    round builds and pins."""
    goal, declared = seen.goal, seen.goal.spec.environment
    was, now = ("\n".join(_shown(line) for line in side) for side in seen.environment)
    change = _bounded(_difference(was, now, f"environment {declared.name}"))
    drifts = [f"{drift.kind} {drift.subject}: {drift.detail}" for drift in goal.drifts if drift.task is None][:SHOWN]
    same = f"the image is layer {goal.environment.layer[:12]}, as pinned: what changed lies outside of it, as the host does; "
    anew = _anew(declared.name)
    return Proposal(
        subject=f"environment {declared.name}",
        difference="\n".join([*([change] if change else []), *drifts]) or f"{same}shown by {bucket.example}",
        then=f"restore it (delete the images folder of the cache) and nothing is to be applied; or lock it anew: once approved, "
        f"`postloop apply {bucket.id[:4]}` names it {anew}, and the next round pins what it builds; then `postloop replay`"
        if change
        else "`postloop canary` names what changed; `postloop replay` shows the first answer that differs; restore that",
        edits={"environment.name": anew} if change else {},
    )


def _anew(name: str) -> str:
    stem, _, number = name.rpartition("-")
    return f"{stem}-{int(number) + 1}" if stem and number.isdecimal() else f"{name[:60]}-2"


def _shown(line: str) -> str:
    """File and package names are whatever the image holds: no line end or escape of theirs reaches a terminal."""
    return "".join(c if c.isprintable() else "?" for c in line[:WIDTH])


def _bounded(difference: str) -> str:
    lines = difference.splitlines()
    more = [f"... and {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    return "\n".join([*lines[:LINES], *more])


def _unstable(bucket: Bucket, seen: Seen) -> Proposal:
    shown = [f"{drift.task}: {drift.kind}: {drift.detail}" for drift in seen.goal.drifts if drift.task is not None]
    return Proposal(
        subject=f"task {_tasks(bucket, seen)}",
        difference="; ".join(shown[:SHOWN]) or "the same outcome got two verdicts: it depends on time, order or chance",
        then="pin what it depends on, then `postloop tasks validate --runs 10`; what still differs is quarantined",
    )


def _task(bucket: Bucket, seen: Seen) -> Proposal:
    facts = seen.facts(bucket)
    found = {
        "the known solution does not pass": any(e.gold_passes is False for e in facts),
        "the audit verifier refuses the known solution": any(e.gold_audited is False for e in facts),
        "the start tree passes": any(e.start_fails is False for e in facts),
    }
    said = "; ".join(text for text, holds in found.items() if holds) or "its proof no longer holds"
    return Proposal(
        f"task {_tasks(bucket, seen)}",
        said,
        "repair its tests or solution, then `postloop tasks validate`; or leave it out",
    )


def _statement(bucket: Bucket, seen: Seen) -> Proposal:
    return Proposal(
        f"statement of task {_tasks(bucket, seen)}",
        "the known solution does not do what the model is shown: its examples and its tests ask for different things",
        "correct the statement or the visible cases, then `postloop tasks validate`; or leave it out",
    )


def _chain(bucket: Bucket, seen: Seen) -> Proposal:
    links = sorted({e.chain for e in seen.facts(bucket) if e.chain})
    kinds = {seen.tasks[e.task_id].kind for e in seen.facts(bucket) if e.task_id in seen.tasks}
    spec = seen.goal.spec
    names = sorted({spec.harness_of.get(kind, spec.harness) for kind in kinds}) or [spec.harness]
    return Proposal(
        f"harness {', '.join(names)}",
        f"first link of the edit chain that differs: {', '.join(links) or 'unknown'}; shown by {bucket.example}",
        "repair the tool or the serialisation; a new harness is a new bundle, and old rollouts are not mixed with it",
    )


def _contamination(bucket: Bucket, seen: Seen) -> Proposal:
    """The training task closest to each measuring task of the bucket: below the share that quarantines, or it were gone."""
    spec = seen.goal.spec.data
    training = [task for task in seen.tasks.values() if task.split is Split.TRAIN]
    copied = [seen.tasks[name] for name in _task_ids(bucket, seen) if name in seen.tasks]
    found = near_copies(training, copied, spec.contamination_ngram, spec.contamination_share / 2)
    pairs = [f"training task {mine} copies evaluation task {theirs}" for mine, theirs in sorted(found.items())[:SHOWN]]
    none = f"no training task shares {spec.contamination_share / 2:.0%} of the n-grams of {_tasks(bucket, seen)}"
    return Proposal(
        f"training task {', '.join(sorted(found)[:SHOWN])}" if found else f"evaluation task {_tasks(bucket, seen)}",
        "; ".join(pairs) or none,
        "leave the training task out, or lower data.contamination_share; what was trained on it measures nothing there",
    )


# --- evaluation


def _unscored(bucket: Bucket, seen: Seen) -> Proposal:
    reasons = sorted({str(a.verdict.reason) for a in seen.members(bucket) if a.verdict.status is Status.UNSCORED})
    return Proposal(
        f"evaluation of task {_tasks(bucket, seen)}",
        "; ".join(reasons[:SHOWN]) or "no verifier gave a score",
        "give its kind a verifier (verifier_of), or leave it out of the suite",
    )


def _setting(bucket: Bucket, seen: Seen) -> Proposal:
    spec = seen.goal.spec
    before, after = (
        f"evaluation:\n  temperature: {t:g}" for t in (spec.evaluation.temperature, spec.sampling.temperature)
    )
    return Proposal(
        "evaluation.temperature",
        _difference(before, after),
        "it passes when sampled as in training: deploy it so, or train as it is deployed; every suite is measured anew; "
        f"once approved, `postloop apply {bucket.id[:4]}` writes it",
        {"evaluation.temperature": spec.sampling.temperature},
    )


def _room(bucket: Bucket, seen: Seen) -> Proposal:
    spec = seen.goal.spec
    limits = spec.budgets.model_dump(mode="json", exclude={"max_turns_of"}) | {"max_tokens": spec.sampling.max_tokens}
    return Proposal(
        "budgets, sampling.max_tokens",
        f"known solutions of {_tasks(bucket, seen)} end at a limit of "
        + ", ".join(f"{k} {v}" for k, v in limits.items()),
        "raise the limit that they meet, or leave the tasks out: no policy can pass them",
    )


def _suite(bucket: Bucket, seen: Seen) -> Proposal:
    skills = sorted({seen.tasks[e.task_id].skill for e in seen.facts(bucket) if e.task_id in seen.tasks})
    return Proposal(
        "evaluation.suites",
        f"skill {', '.join(skills)} is measured, but no capability names it and no task trains it",
        "take it out of the suites, or name it as a capability and train it",
    )


def _other(bucket: Bucket, seen: Seen) -> Proposal:
    return Proposal(
        f"{bucket.route.value}: {bucket.cause}", f"shown by {bucket.example}, task {_tasks(bucket, seen)}",
        "a person decides on verifiers, reward rules and suites, then re-scores the old samples",
    )  # fmt: skip


def _task_ids(bucket: Bucket, seen: Seen) -> list[str]:
    """Tasks of the bucket, the most frequent first."""
    named = [attempt.trajectory.task_id for attempt in seen.members(bucket)]
    return sorted(set(named), key=lambda name: (-named.count(name), name))


def _tasks(bucket: Bucket, seen: Seen) -> str:
    names: Sequence[str] = _task_ids(bucket, seen)
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def _difference(before: str, after: str, name: str = "goal.yaml") -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="")
    return "\n".join(lines)
