from __future__ import annotations

from typing import Any

import pytest

from evals.evidence import collect
from evals.rules import (
    DEFAULT,
    check_rules,
    complete,
    decide,
    holding,
    joined,
    load_rules,
    matches,
    open_questions,
    route_of,
    rules_digest,
)
from schemas.attribution import FILLED_BY, FILLS
from schemas.bucket import Evidence, Route, Rule
from schemas.errors import InputError, SpecError
from schemas.verdict import Check

RULES = load_rules()


def evidence(**changes) -> Evidence:
    """A wrong repair of a task that nothing was ever scored on: no default rule but the last one matches."""
    facts = {
        "trajectory": "evaluation-0",
        "task_id": "repair/f/arith_1",
        "family": "repair.value",
        "origin": "f",
        "status": "scored",
        "parse_errors": 0,
        "turns": 2,
        "tool_errors": 0,
        "forbidden": 0,
        "violations": [],
        "failed_checks": 2,
        "passed_checks": 3,
        "limit_hit": None,
        "truncated": False,
        "submitted": False,
        "unchanged": False,
        "visible_passed": False,
        "touched": ["solution.py"],
        "task_passes": 0,
        "task_attempts": 1,
        "pass_at_k": 0.0,
        "family_parse_rate": 0.95,
        "family_pass": 0.5,
        "trained_origins": 30,
    }
    measured = sorted({FILLED_BY[name] for name in changes if name in FILLED_BY})
    return Evidence(**{"measured": measured, **facts, **changes})


TABLE = [
    ("infrastructure_error", "infrastructure", {"status": "error", "turns": 0, "failed_checks": 0}),
    ("not_scored", "evaluation", {"status": "unscored"}),
    ("suite_of_another_skill", "evaluation", {"in_capabilities": False, "parse_errors": 2}),
    ("training_knew_the_task", "data", {"contaminated": True, "passed": True, "failed_checks": 0}),
    ("image_is_another", "data", {"image_drifted": True, "gold_passes": False}),
    ("waited_for_the_machine", "infrastructure", {"rescored": "flips", "limit_hit": "wall"}),
    ("the_known_solution_waits_too", "infrastructure", {"gold_waits": True, "limit_hit": "wall", "task_passes": 1}),
    ("verdict_flips", "data", {"verdict_flipped": True, "audit_differs": True}),
    ("rescored_flips", "data", {"rescored": "flips"}),
    ("replay_is_unstable", "data", {"replayed": "unstable", "tool_errors": 2}),
    ("replay_drifts", "data", {"replayed": "drifted"}),
    ("gold_fails_audit_passes", "goal", {"gold_passes": False, "gold_audited": True}),
    ("gold_fails", "data", {"gold_passes": False, "gold_audited": False}),
    ("start_passes", "data", {"start_fails": False, "unchanged": True}),
    ("shown_contradicts", "data", {"shown_holds": False, "visible_passed": True}),
    ("audit_contests_pass", "goal", {"audit_differs": True, "failed_checks": 0, "task_passes": 1}),
    ("audit_contests_failure", "goal", {"audit_differs": True}),
    ("verifier_of_today_differs", "goal", {"current_differs": True}),
    ("failure_pays", "goal", {"rules_agree": False, "task_passes": 2}),
    ("no_room_for_gold", "evaluation", {"gold_reaches": "limit", "truncated": True}),
    ("gold_does_not_get_through", "data", {"gold_reaches": "parse", "parse_errors": 2}),
    ("tool_link", "data", {"chain": "tool", "tool_errors": 2}),
    ("cut_link", "data", {"chain": "cut", "tool_errors": 2}),
    ("tokenizer_link", "sft", {"chain": "tokenizer"}),
    ("text_does_not_come_back", "sft", {"round_trip": False}),
    ("template_changed", "sft", {"template_same": False, "parse_errors": 2}),
    ("setting_of_the_measure", "evaluation", {"setting_helps": True, "truncated": True}),
    ("trained_to_nothing", "sft", {"untrained": True, "parse_errors": 2}),
    ("lost_in_rl", "rl", {"lost_at": "rl", "parse_errors": 2}),
    ("forgotten_in_sft", "sft", {"lost_at": "sft", "trained_origins": 0}),
    ("only_without_noise", "sft", {"noise_hits": 1, "quiet_helps": True, "task_passes": 1, "task_attempts": 4}),
    ("only_under_another_harness", "sft", {"harness_helps": True}),
    ("leaves_boundary", "sft", {"forbidden": 1}),
    ("calls_no_such_tool", "sft", {"unknown_tools": 2, "parse_errors": 2, "family_parse_rate": 0.2, "unchanged": True}),
    (
        "arguments_refused",
        "sft",
        {"wrong_arguments": 2, "parse_errors": 2, "family_parse_rate": 0.2, "unchanged": True},
    ),
    ("family_cannot_parse", "sft", {"parse_errors": 1, "family_parse_rate": 0.2, "truncated": True}),
    ("cut_at_token_limit", "sft", {"truncated": True, "parse_errors": 2, "unchanged": True}),
    ("no_turn_parses", "sft", {"parse_errors": 2, "unchanged": True}),
    ("edits_what_is_not_there", "sft", {"chain": "model", "tool_errors": 1, "unchanged": True}),
    ("every_call_fails", "sft", {"tool_errors": 2, "unchanged": True}),
    ("evades_verifier", "rl", {"violations": ["tampering"], "failed_checks": 0}),
    ("context_fills_up", "sft", {"context_full": True, "unchanged": True, "visible_passed": None}),
    ("hands_in_nothing", "sft", {"unchanged": True, "visible_passed": None, "touched": []}),
    ("hands_in_the_start", "sft", {"unchanged": True, "touched": []}),
    ("submits_on_red", "sft", {"submitted": True}),
    ("few_training_origins", "data", {"trained_origins": 3, "task_passes": 2}),
    ("right_only_where_seen", "rl", {"visible_passed": True, "task_passes": 1, "task_attempts": 4}),
    ("exhausts_limits", "rl", {"limit_hit": "cpu", "task_passes": 1, "task_attempts": 4}),
    ("task_seldom_solved", "rl", {"task_passes": 1, "task_attempts": 4}),
    ("passes_from_a_prefix", "rl", {"task_attempts": 4, "first_bad_turn": 1, "prefix_helps": True, "family_pass": 0.1}),
    ("passes_with_a_hint", "sft", {"task_attempts": 4, "hinted_helps": True, "family_pass": 0.1}),
    ("family_never_solved", "data", {"task_attempts": 4, "family_pass": 0.1}),
    ("family_sometimes_solved", "rl", {"task_attempts": 4}),
    ("nothing_else", "undetermined", {}),
]


@pytest.mark.parametrize(("rule", "route", "facts"), TABLE, ids=[row[0] for row in TABLE])
def test_each_default_rule_owns_its_failure(rule, route, facts):
    found = decide(evidence(**facts), RULES)
    assert (found.id, found.route) == (rule, route)


def test_every_default_rule_is_shown_above():
    assert [row[0] for row in TABLE] == [rule.id for rule in RULES]


def test_what_was_not_measured_matches_nothing_and_is_an_open_question():
    cheap = {"rescore", "image", "replay", "gold", "shown", "current", "pricing", "gold_path", "tokenizer"}
    facts = evidence(truncated=True, task_passes=1, task_attempts=4, measured=[])
    assert decide(facts, RULES).id == "cut_at_token_limit"
    assert open_questions(facts, RULES) == cheap  # it was passed once: no policy need be asked
    never = evidence(truncated=True, task_passes=0, task_attempts=4, measured=sorted(cheap))
    assert open_questions(never, RULES) == {"setting", "checkpoint", "harness"}
    assert open_questions(evidence(status="error", measured=[]), RULES) == set()


def test_only_a_failure_that_met_noise_asks_for_an_attempt_without_it():
    met = {"noise_hits": 1, "task_passes": 1, "task_attempts": 4}
    assert "quiet" in open_questions(evidence(**met, measured=[]), RULES)
    assert "quiet" not in open_questions(evidence(**{**met, "noise_hits": 0}, measured=[]), RULES)
    assert decide(evidence(**met, quiet_passes=4, quiet_helps=False), RULES).cause != "noise_sensitivity"


def test_a_field_that_a_condition_compares_with_is_an_open_question_too():
    rule = Rule(id="fewer", cause="c", route=Route.SFT, when={"task_passes": {"lt": "hinted_passes"}}, because="x")
    assert open_questions(evidence(measured=[]), [rule]) == {"hint"}
    assert open_questions(evidence(hinted_passes=None, measured=["hint"]), [rule]) == set()


def test_a_field_that_an_experiment_could_not_find_is_no_open_question():
    every = list(FILLS)
    facts = evidence(measured=every, task_attempts=4)
    assert open_questions(facts, RULES) == set()
    assert decide(facts, RULES).id == "family_sometimes_solved"


def test_more_than_one_cause_can_hold_and_the_order_says_which_owns_it():
    facts = evidence(truncated=True, gold_passes=False, gold_audited=False, unchanged=True)
    assert decide(facts, RULES).cause == "wrong_task"
    assert [rule.cause for rule in holding(facts, RULES)] == ["wrong_task", "never_stops", "returns_unchanged"]


def test_the_same_evidence_always_gives_the_same_rule():
    one = evidence(truncated=True, parse_errors=1)
    assert {decide(Evidence.model_validate_json(one.model_dump_json()), load_rules()).id for _ in range(5)} == {
        "cut_at_token_limit"
    }
    assert rules_digest(load_rules()) == rules_digest(RULES)
    assert rules_digest(RULES[::-1]) != rules_digest(RULES)


def test_infrastructure_never_reaches_training():
    everything = {"truncated": True, "parse_errors": 2, "unchanged": True, "audit_differs": True, "task_passes": 1}
    assert decide(evidence(status="error", **everything), RULES).route is Route.INFRASTRUCTURE


def test_pass_at_k_of_zero_never_goes_to_rl_when_the_family_is_never_solved():
    for facts in ({"limit_hit": "cpu"}, {"visible_passed": True}, {}):
        found = decide(evidence(task_attempts=4, family_pass=0.0, **facts), RULES)
        assert found.route is Route.DATA


def test_one_cause_has_one_route():
    assert route_of(RULES, "rare_success") is Route.RL
    with pytest.raises(InputError, match="no rule has it"):
        route_of(RULES, "bad_mood")


@pytest.mark.parametrize(
    ("when", "yes"),
    [
        ({"turns": {"ge": 2, "le": 2}}, True),
        ({"turns": {"gt": 2}}, False),
        ({"parse_errors": {"lt": "turns"}}, True),
        ({"pass_at_k": {"le": 0}}, False),
        ({"pass_at_k": None}, True),
        ({"violations": {"contains": "tampering"}}, True),
        ({"violations": {"ge": 2}}, False),
        ({"violations": ["tampering"]}, True),
        ({"family": {"in": ["repair.value", "repair.condition"]}}, True),
        ({"submitted": False, "turns": 2}, True),
        ({"parse_errors": False}, False),
    ],
)
def test_comparisons(when, yes):
    facts = evidence(violations=["tampering"], pass_at_k=None)
    assert matches(facts, Rule(id="x", cause="y", route=Route.RL, when=when, because="z")) is yes


ENTRY = "- {{id: {id}, cause: {cause}, route: {route}, when: {when}, because: x}}\n"
LAST = ENTRY.format(id="rest", cause="rest", route="undetermined", when="{}")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (("a", "a", "rl", "{colour: red}"), "2: a.when.colour: evidence has no such field"),
        (("a", "a", "rl", "{turns: {about: 2}}"), "2: a.when.turns: unknown comparison 'about'"),
        (("a", "a", "rl", "{family: {gt: 2}}"), "2: a.when.family: gt needs a number"),
        (("a", "a", "rl", "{turns: {gt: many}}"), "2: a.when.turns: gt 'many' is neither a number"),
        (("a", "a", "rl", "{family: {in: repair}}"), "2: a.when.family: in 'repair' is not a list"),
        (("a", "a", "rl", "{family: {contains: repair}}"), "2: a.when.family: contains needs a list"),
        (("a", "a", "rl", "{turns: {}}"), "2: a.when.turns: an empty comparison"),
        (("a", "a", "moon", "{turns: 2}"), "2: route: Input should be"),
        (("rest", "a", "rl", "{turns: 2}"), "3: rest.id: used twice"),
        (("a", "rest", "rl", "{turns: 2}"), "3: rest.route: undetermined, but cause rest went to rl"),
        (("a", "a", "rl", "{}"), "3: rest.when: never reached"),
    ],
)
def test_a_bad_rule_file_is_refused_at_its_line(tmp_path, entry, problem):
    path = tmp_path / "routes.yaml"
    keys = dict(zip(("id", "cause", "route", "when"), entry, strict=True))
    path.write_text("# ours\n" + ENTRY.format(**keys) + LAST)
    with pytest.raises(SpecError) as error:
        load_rules(path)
    assert f"{path}:{problem}" in error.value.problems[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n", ":1: rules: CommentedMap, not a list"),
        ("- {id: [\n", "not YAML"),
        (ENTRY.format(id="a", cause="a", route="rl", when="{turns: 2}"), "the last rule has a condition"),
        ("[]\n", "the last rule has a condition"),
    ],
)
def test_a_file_that_is_no_list_of_rules_is_refused(tmp_path, text, problem):
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=problem):
        load_rules(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent.yaml: cannot be read"):
        load_rules(tmp_path / "absent.yaml")


def test_a_specs_rules_give_no_cause_of_a_built_in_one_another_route():
    def own(**said: Any) -> Rule:
        return Rule.model_validate({"id": "mine", "cause": "mine", "route": "rl", "when": {}, "because": "b", **said})

    assert [rule.id for rule in complete([own()])] == ["infrastructure_error", "not_scored", "mine"]
    assert len(complete([own(cause="unscored", route="evaluation")])) == 3
    assert len(complete([own(), own(id="not_scored", cause="unscored")])) == 3, "that one is not a spec's to change"
    with pytest.raises(SpecError, match=r"routes\[1\]: mine.route: rl, but cause unscored goes to evaluation") as error:
        complete([own(id="other"), own(cause="unscored")])
    assert len(error.value.problems) == 1
    assert len(joined([own(cause="unscored")])) == 3, "what is recorded already is pinned all the same"


def test_rules_of_a_spec_are_checked_alike():
    assert check_rules(RULES) == RULES
    with pytest.raises(SpecError, match=r"routes\[0\]: infrastructure_error.when.sky: evidence has no such field"):
        check_rules([RULES[0].model_copy(update={"when": {"sky": 1}}), *RULES[1:]])
    assert DEFAULT.name == "rules.yaml"


def test_evidence_is_of_failures_contested_passes_and_lost_attempts(make_task, make_attempt):
    task = make_task()
    attempts = [
        make_attempt(task, 0, True),
        make_attempt(task, 1, False, visible=True, errors=("no fence", None)),
        make_attempt(task, 2, True, audit=False),
        make_attempt(task, 3, status="error"),
        make_attempt(task, 4, status="lost", errors=()),
        make_attempt(task, 5, status="unscored"),
    ]
    found = {e.trajectory: e for e in collect(attempts, {task.id: task}, {"repair.value": 12})}
    ids = [a.trajectory.id for a in attempts]
    assert ids[0] not in found
    wrong = found[ids[1]]
    assert (wrong.parse_errors, wrong.turns, wrong.visible_passed) == (1, 2, True)
    assert (wrong.task_passes, wrong.task_attempts, wrong.pass_at_k) == (2, 3, 1.0)
    assert 0.0 < wrong.pass_at_k_low < 0.3 < 0.99 < wrong.pass_at_k_high <= 1.0
    assert (wrong.failed_checks, wrong.touched, wrong.trained_origins) == (1, ["solution.py"], 12)
    assert (wrong.family_pass, wrong.family_parse_rate) == (1.0, pytest.approx(5 / 6))
    rules = [decide(found[i], RULES).id for i in ids[1:]]
    assert rules == [
        "right_only_where_seen",
        "audit_contests_pass",
        "infrastructure_error",
        "infrastructure_error",
        "not_scored",
    ]


def test_evidence_names_the_first_failed_tests_as_the_verifier_had_them(make_task, make_attempt):
    task, attempt = make_task(), make_attempt(make_task())
    names = ["z", *(f"hidden_{n}" for n in range(40)), "x" * 10_000]
    checks = [Check(name=name, role="p2p", passed=name == "hidden_0") for name in reversed(names)]
    attempt = attempt.model_copy(update={"verdict": attempt.verdict.model_copy(update={"checks": checks})})
    (found,) = collect([attempt], {task.id: task}, {})
    assert found.failed_tests == ["x" * 120, *(f"hidden_{n}" for n in range(39, 24, -1))]
    assert (len(found.failed_tests), found.failed_checks, found.passed_checks) == (16, 41, 1)
    (lost,) = collect([make_attempt(task, status="lost", errors=())], {task.id: task}, {})
    assert (lost.failed_tests, lost.similarity, lost.nearest_task) == ([], None, None)


def test_a_rule_may_ask_how_like_a_task_is_and_which_test_failed():
    when = {"similarity": {"ge": 0.4}, "failed_tests": {"contains": "hidden_1"}}
    own = check_rules([{"id": "near", "cause": "near", "route": "rl", "when": when, "because": "b"}, RULES[-1]])
    near = {"similarity": 0.4, "failed_tests": ["hidden_0", "hidden_1"]}
    said = [near, {**near, "similarity": 0.39}, {**near, "similarity": None}, {**near, "failed_tests": ["hidden_0"]}]
    assert [matches(evidence(**facts), own[0]) for facts in said] == [True, False, False, False]


def test_visible_tests_that_noise_broke_say_nothing(make_task, make_attempt):
    task = make_task()
    seen, broken = (make_attempt(task, n, False, visible=False, errors=(None, None)) for n in range(2))
    turns = [turn.model_copy(update={"noise": ["timeout"]}) for turn in broken.trajectory.turns]
    broken = broken.model_copy(update={"trajectory": broken.trajectory.model_copy(update={"turns": turns})})
    found = {one.trajectory: one for one in collect([seen, broken], {task.id: task}, {})}
    facts = [
        (e.noise_hits, e.visible_passed, e.first_bad_turn)
        for e in map(found.get, (seen.trajectory.id, broken.trajectory.id))
    ]
    assert facts == [(0, False, 0), (2, None, None)]


def test_an_outcome_judged_twice_with_two_answers_is_unstable(make_task, make_attempt):
    task, same = make_task(), {"solution.py": "same\n"}
    attempts = [make_attempt(task, 0, True, outcome=same), make_attempt(task, 1, False, outcome=same)]
    (found,) = collect(attempts, {task.id: task}, {})
    assert found.verdict_flipped
    assert decide(found, RULES).cause == "unstable"


def test_evidence_refuses_an_attempt_at_an_unknown_task(make_task, make_attempt):
    with pytest.raises(InputError, match="not in the task set"):
        collect([make_attempt(make_task())], {}, {})
