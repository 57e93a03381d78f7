"""The experiments of the ladder: each runs something again and adds what it found to the evidence of a failure.

L0 scores the outcome again and the task's known solution beside it (`score`); L1 executes the recorded actions, and the
known solution, through the harness (`execute`); L2 lets the policy go on (`sample`); L3 swaps one pin: the noise, the
setting, the checkpoint (`swap`), the image (`execute`). Each is one function over the failures that ask for it, so that
sandboxes and batches are filled. A policy is asked under the noise of the failures, but where noise is what is swapped;
the known solution under none. What cannot be run says why, and its fields stay empty.

Not covered: swapping a teacher or a judge model.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.attribution import ExperimentName
from stages.experiments.budget import SAMPLES, attempts_needed, wave
from stages.experiments.execute import gold_path, image, replay
from stages.experiments.lab import Case, Lab, Policy, Run
from stages.experiments.sample import again, harness, hint, prefix
from stages.experiments.score import audit, current, gold, pricing, rescore, shown, tokenizer
from stages.experiments.swap import checkpoint, quiet, setting

__all__ = ["EXPERIMENTS", "SAMPLES", "Case", "Lab", "Policy", "attempts_needed", "wave"]

EXPERIMENTS: Mapping[ExperimentName, Run] = {
    "rescore": rescore, "audit": audit, "current": current, "gold": gold, "shown": shown, "pricing": pricing,
    "tokenizer": tokenizer, "image": image, "replay": replay, "gold_path": gold_path, "again": again, "hint": hint,
    "prefix": prefix, "harness": harness, "quiet": quiet, "setting": setting, "checkpoint": checkpoint,
}  # fmt: skip
