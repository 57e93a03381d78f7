"""Good beginnings of failed rollouts in a harness of many turns: where the first bad turn is, and gold from there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from environments.bundles import Bundle, builtin
from environments.engines import open_engine
from environments.image import build_image
from environments.runner import Runner
from schemas.execution import Limits
from schemas.goal import Budgets, Safety
from schemas.model import TinyModel
from schemas.task import Case, Split, Task
from schemas.trajectory import Purpose, Sampling, Trajectory
from stages.models import fetch
from stages.pairs import before, decision_turn
from stages.prefixes import can_go_on, first_bad_turn
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers import SampleRequest
from stages.samplers.scripted_sampler import ScriptedSampler

CODE = "def f(x):\n    y = x + 1\n    return y\n"
SETTING = Setting(Sampling(max_tokens=256), Budgets(max_turns=6, max_tool_calls=6, max_context_tokens=4096), Safety())
READ, RUN, SUBMIT = ({"tool": "read_file", "path": "solution.py"}, {"tool": "run_tests"}, {"tool": "submit"})
EDIT = {"tool": "replace_line", "path": "solution.py", "line": 2, "text": "    y = x + 9"}
LOST = {"tool": "read_file", "path": "nothing.py"}


def task() -> Task:
    return Task(
        id="repair/f/0", kind="function", family="repair.value", skill="repair", origin="f", split=Split.TRAIN,
        statement="f doubles x.", files={"solution.py": CODE}, editable=["solution.py"], entry="f",
        visible=[Case(args=[3], expected=6)], hidden=[Case(args=[4], expected=8)],
        gold={"solution.py": CODE.replace("x + 1", "x * 2")}, wrong={"solution.py": CODE}, made_by="test",
    )  # fmt: skip


class Says(ScriptedSampler):
    """A policy that makes these calls in turn."""

    calls: Sequence[dict[str, object]] = ()

    def _answer(self, task: Task, request: SampleRequest) -> str:
        return json.dumps(self.calls[min(request.turn, len(self.calls) - 1)])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch(TinyModel(), tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    image = build_image(tmp_path_factory.mktemp("images"))
    return Runner(open_engine("bubblewrap"), image.environment, image.root, Limits(), retries=0)


@pytest.fixture(scope="module")
def tools() -> Iterator[Bundle]:
    with Bundle(builtin("tools")) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def failed(tiny: Path, runner: Runner, tools: Bundle) -> dict[str, Trajectory]:
    """Four rollouts, each with its own first bad turn."""
    made = {}
    scripts = {
        "stops": [READ, RUN, SUBMIT], "refused": [READ, LOST, SUBMIT], "edits": [EDIT, RUN, SUBMIT], "at once": [SUBMIT],
    }  # fmt: skip
    for name, calls in scripts.items():
        policy = Says(tiny, {"repair/f/0": task()})
        policy.calls = calls
        (made[name],), _ = rollout(policy, tools, runner, [RolloutRequest(task(), 0, Purpose.RL)], SETTING)
    return made


def test_the_first_bad_turn_is_the_one_that_was_refused_or_ended_it(failed: dict[str, Trajectory]) -> None:
    assert {name: first_bad_turn(one) for name, one in failed.items()} == {
        "stops": 2,
        "refused": 1,
        "edits": 2,
        "at once": 0,
    }
    assert failed["stops"].turns[1].visible == {
        "passed": 0,
        "failed": 1,
        "first": failed["stops"].turns[1].visible["first"],
    }


def test_tests_that_noise_broke_make_no_turn_a_bad_one(failed: dict[str, Trajectory]) -> None:
    one = failed["edits"]
    for noise, first in (([], 0), (["clean"], 0), (["lose"], 2)):
        tested = one.turns[0].model_copy(update={"visible": {"passed": 0, "failed": 1, "first": None}, "noise": noise})
        assert first_bad_turn(one.model_copy(update={"turns": [tested, *one.turns[1:]]})) == first


def test_a_prefix_that_changed_a_file_cannot_be_gone_on_with(failed: dict[str, Trajectory]) -> None:
    assert can_go_on(failed["stops"], 2, task())
    assert can_go_on(failed["edits"], 0, task())
    assert not can_go_on(failed["edits"], 2, task())
    assert not can_go_on(failed["at once"], 1, task())


@pytest.mark.parametrize("begun", [True, False])
def test_gold_goes_on_where_the_policy_stopped_too_early(
    tiny: Path, runner: Runner, tools: Bundle, failed: dict[str, Trajectory], begun: bool
) -> None:
    """Unless it is told how many turns were taken, gold takes its own first turn for done."""
    parent = failed["stops"]
    gold = ScriptedSampler(tiny, {"repair/f/0": task()}, "gold", begun={("repair/f/0", 5): 2} if begun else None)
    asked = RolloutRequest(task(), 5, Purpose.DEMONSTRATION, parent=parent, prefix_turn=2)
    (made,), _ = rollout(gold, tools, runner, [asked], SETTING)
    assert [turn.text for turn in made.turns[:2]] == [turn.text for turn in parent.turns[:2]]
    assert (made.parent, made.prefix_turn, made.stop) == (parent.id, 2, "submitted")
    assert (made.outcome == task().gold) is begun


def test_the_decision_to_stop_is_the_turn_that_stopped_and_its_prompt_is_all_before(
    failed: dict[str, Trajectory],
) -> None:
    one = failed["stops"]
    assert decision_turn("stops_early", one) == 2
    prompt = before(one, 2)
    assert [message["role"] for message in prompt[-4:]] == ["assistant", "user", "assistant", "user"]
    assert prompt == one.conversation()[:-1]
    assert decision_turn("never_stops", one) == 2
    cut = one.model_copy(update={"turns": [one.turns[0].model_copy(update={"stop": "length"}), *one.turns[1:]]})
    assert decision_turn("never_stops", cut) == 0
    passed = one.turns[0].model_copy(update={"visible": {"passed": 1, "failed": 0, "first": None}})
    assert decision_turn("never_stops", one.model_copy(update={"turns": [passed, *one.turns[1:]]})) == 1
