"""A pytest file from a table of cases, with sentinels: one that must pass, decoys that must fail."""

import hashlib

HEAD = '''"""Generated from hidden cases. Names and order differ in every run."""

import importlib.util
import math
import sys

import pytest

sys.dont_write_bytecode = True


def load(path, name):
    spec = importlib.util.spec_from_file_location("attempt", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attempt"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def same(got, wanted):
    if type(got) is not type(wanted):
        return False
    if type(wanted) is float:
        return got == wanted or abs(got - wanted) <= 1e-9 * max(abs(got), abs(wanted)) < math.inf
    if type(wanted) in (list, tuple):
        return len(got) == len(wanted) and all(same(left, right) for left, right in zip(got, wanted))
    if type(wanted) is dict:
        return got.keys() == wanted.keys() and all(same(got[key], wanted[key]) for key in wanted)
    return got == wanted

'''


def name_of(nonce, label):
    return "test_" + hashlib.sha256(f"{nonce}:{label}".encode()).hexdigest()[:16]


def test_file(path, entry, cases, nonce):
    """(source, names, twins).

    `names` maps a label ("0", "1", ... for cases; pass, negated, decoy for sentinels) to the name of its test; `twins`
    maps negated and decoy to the label of the case that each was made from: one with a value where there is any, since a
    call that raises does not get to the comparison, and so would hide one that was replaced.
    """
    valued = [index for index, case in enumerate(cases) if case["raises"] is None] or list(range(len(cases)))
    chosen = valued[int(hashlib.sha256(nonce.encode()).hexdigest(), 16) % len(valued)]
    other = valued[(valued.index(chosen) + 1) % len(valued)]
    tests = {str(index): body(path, entry, case) for index, case in enumerate(cases)}
    tests["pass"] = ["    assert len('postloop') == 8"]
    tests["negated"] = body(path, entry, cases[chosen], negated=True)
    tests["decoy"] = body(path, entry, {**cases[other], "expected": changed(cases[other]["expected"]), "raises": None})
    names = {label: name_of(nonce, label) for label in tests}
    blocks = sorted(f"\ndef {names[label]}():\n" + "\n".join(lines) + "\n" for label, lines in tests.items())
    return HEAD + "\n".join(blocks), names, {"negated": str(chosen), "decoy": str(other)}


def changed(value):
    """Another value of the same type, so that nothing in it says that its test is a decoy."""
    if type(value) in (bool, type(None)):
        return not value
    if type(value) in (list, tuple):
        return [*value[:-1], changed(value[-1])] if value else [0]
    if type(value) is dict:
        return {key: changed(item) for key, item in value.items()} if value else {"a": 0}
    if type(value) is float:  # far from it also where a small difference would be rounding
        return -value - 1.5 if value >= 0 else -value + 1.5
    return value + {int: 3, str: "s"}[type(value)]


def body(path, entry, case, negated=False):
    call = f"load({path!r}, {entry!r})(*{case['args']!r})"
    if case["raises"] is None:
        return [f"    got = {call}", f"    assert {'not ' if negated else ''}same(got, {case['expected']!r})"]
    lines = ["    raised = None", "    try:", f"        {call}", "    except Exception as error:"]
    lines += ["        raised = type(error)"]
    return [*lines, f"    assert raised is {'not ' if negated else ''}{case['raises']}"]
