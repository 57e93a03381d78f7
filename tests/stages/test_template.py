"""The template is the same, byte for byte and token for token, in training and in rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.bundles import Bundle, builtin
from environments.engines import open_engine
from environments.image import build_image
from environments.runner import Runner
from environments.sources import default
from schemas.execution import Limits
from schemas.goal import Budgets
from schemas.model import TinyModel
from schemas.task import Split
from schemas.trajectory import Purpose, Sampling, Trajectory
from stages.models import fetch
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers.scripted_sampler import ScriptedSampler
from stages.trainers.conversation import tokenize_conversation


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trajectory]]:
    """Conversations of one and of several turns, from both harnesses, with failing tests and tool answers in between."""
    cache = tmp_path_factory.mktemp("cache")
    model = fetch(TinyModel(), cache)
    image = build_image(cache / "images")
    runner = Runner(open_engine("bubblewrap"), image.environment, image.root, Limits())
    seeds = default.tasks_of(0)
    tasks = [next(t for t in seeds[skill] if t.split is Split.TRAIN) for skill in ("repair", "lookup")]
    sampling = Sampling(engine="scripted", max_tokens=1024)
    setting = Setting(sampling=sampling, budgets=Budgets(max_turns=4, max_context_tokens=8192), batch=8)
    found: list[Trajectory] = []
    for harness in ("fenced", "tools"):
        with Bundle(builtin(harness)) as bundle:
            for strategy in ("gold", "noop", "garbage"):
                sampler = ScriptedSampler(model, {t.id: t for t in tasks}, strategy)
                requests = [RolloutRequest(task=t, seed=1, purpose=Purpose.DEMONSTRATION) for t in tasks]
                found += rollout(sampler, bundle, runner, requests, setting)[0]
    return model, found


def test_training_sees_the_very_tokens_and_mask_of_the_rollout(trajectories: tuple[Path, list[Trajectory]]) -> None:
    from transformers import AutoTokenizer

    model, rows = trajectories
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert max(len(t.turns) for t in rows) > 1, "no conversation of several turns: the test would prove little"
    compared = 0
    for trajectory in rows:
        if any(turn.stop != "eos" for turn in trajectory.turns):
            continue
        trained = tokenize_conversation(tokenizer, trajectory.conversation())
        assert trained.ids == trajectory.token_ids()
        assert trained.mask == trajectory.loss_mask()
        compared += 1
    assert compared >= 8


def test_the_mask_decodes_to_what_the_model_wrote_and_nothing_else(trajectories: tuple[Path, list[Trajectory]]) -> None:
    from transformers import AutoTokenizer

    model, rows = trajectories
    tokenizer = AutoTokenizer.from_pretrained(model)
    trajectory = max(rows, key=lambda t: len(t.turns))
    ids, mask = trajectory.token_ids(), trajectory.loss_mask()
    trained = tokenizer.decode([token for token, bit in zip(ids, mask, strict=True) if bit])
    written = "".join(turn.text + tokenizer.eos_token for turn in trajectory.turns)
    assert trained == written
    for turn in trajectory.turns:
        for message in turn.messages:
            assert message["content"] not in trained or not message["content"].strip()
