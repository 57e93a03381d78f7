"""One canonical form, one digest; what has no stable form is refused."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from schemas.base import canonical, digest_of
from schemas.errors import PinMismatch
from schemas.execution import Limits
from schemas.pins import TABLE, require_equal
from schemas.verdict import Verdict


def test_key_order_and_spacing_do_not_change_a_digest() -> None:
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of(json.loads('{ "b": [1, 2], "a": 1 }'))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: 2}, {"f": print}, b"bytes"])
def test_what_has_no_stable_form_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="no stable form"):
        canonical({"x": value})


def test_a_changed_field_changes_the_digest() -> None:
    assert Limits().digest() != Limits(cpu_s=6).digest()
    assert Limits().digest() == Limits(cpu_s=5.0).digest()


def test_specs_are_closed_and_frozen() -> None:
    with pytest.raises(ValidationError):
        Limits.model_validate({"cpu_s": 1, "cpus": 2})
    with pytest.raises(ValidationError):
        Limits().cpu_s = 3


def test_an_error_verdict_has_no_score_and_a_scored_one_has() -> None:
    digests = dict.fromkeys(("outcome", "task", "image", "limits", "verifier"), "0" * 64)
    Verdict.model_validate({**digests, "status": "error", "reason": "sandbox died"})
    for wrong in ({"status": "error", "score": 0.0, "passed": False}, {"status": "scored"}):
        with pytest.raises(ValidationError, match="do not belong together"):
            Verdict.model_validate({**digests, **wrong})


@pytest.mark.parametrize("operation", sorted(TABLE))
def test_a_pin_that_an_operation_needs_is_refused_by_name_with_both_values(operation) -> None:  # type: ignore[no-untyped-def]
    recorded = {name: digest_of(name) for name in TABLE[operation]}
    assert require_equal(operation, recorded, recorded) == []
    for name in TABLE[operation]:
        present = {**recorded, name: digest_of("other")}
        with pytest.raises(PinMismatch) as caught:
            require_equal(operation, recorded, present)
        assert name in str(caught.value)
        assert recorded[name][:12] in str(caught.value)
        assert digest_of("other")[:12] in str(caught.value)
        (allowed,) = require_equal(operation, recorded, present, widened=(name,))
        assert (allowed.pin, allowed.recorded, allowed.present) == (name, recorded[name], digest_of("other"))
