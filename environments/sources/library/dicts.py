"""Small functions over tables with string keys."""


def count_words(text):
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def invert_table(table):
    out = {}
    for key in table:
        if table[key] not in out:
            out[table[key]] = key
    return out


def merge_counts(left, right):
    out = dict(left)
    for key in right:
        out[key] = out.get(key, 0) + right[key]
    return out


def top_key(table):
    best = None
    for key in table:
        if best is None or table[key] > table[best]:
            best = key
    return best


def keys_above(table, limit):
    out = []
    for key in sorted(table):
        if table[key] > limit:
            out.append(key)
    return out


def group_by_first(words):
    groups = {}
    for word in words:
        groups.setdefault(word[0], []).append(word)
    return groups


def total_of(table, keys):
    total = 0
    for key in keys:
        total += table.get(key, 0)
    return total


def pick_keys(table, keys):
    out = {}
    for key in keys:
        if key in table and table[key] is not None:
            out[key] = table[key]
    return out


def without_key(table, key):
    out = dict(table)
    if key in out:
        del out[key]
    return out


def nested_get(table, outer, inner):
    if outer in table and inner in table[outer]:
        return table[outer][inner]
    return None


def changed_keys(old, new):
    out = []
    for key in sorted(new):
        if key not in old or old[key] != new[key]:
            out.append(key)
    return out


def rename_key(table, old, new):
    out = {}
    for key in table:
        out[new if key == old else key] = table[key]
    return out


def fill_missing(table, keys, value):
    out = dict(table)
    for key in keys:
        if key not in out:
            out[key] = value
    return out


def rank_names(scores):
    names = sorted(scores, key=lambda name: (-scores[name], name))
    return names[:3]


CASES = {
    "count_words": (
        "return how often each word of text occurs",
        [
            ["a b a"], [""], ["one"], ["x x x"], ["to be or not to be"], ["A a"], ["  up  up down "], ["p q r q"],
        ],
    ),
    "invert_table": (
        "return a table from the values of table to the first key with that value",
        [
            [{"a": "x", "b": "y"}], [{}], [{"k": "v"}], [{"a": "x", "b": "x"}],
            [{"red": "r", "blue": "b", "green": "g"}], [{"a": "a"}], [{"up": "down", "down": "up"}],
            [{"1": "one", "2": "two"}],
        ],
    ),
    "merge_counts": (
        "return the counts of left and right added up key by key",
        [
            [{"a": 1}, {"a": 2}], [{"a": 1}, {"b": 2}], [{}, {"x": 3}], [{"x": 3}, {}], [{}, {}],
            [{"a": 1, "b": 5}, {"b": -5, "c": 2}], [{"k": 0}, {"k": 7}], [{"a": 4, "b": 4}, {"a": 3, "b": 2}],
        ],
    ),
    "top_key": (
        "return the first key with the largest value, or None",
        [
            [{"a": 1, "b": 3}], [{"a": 3, "b": 1}], [{"a": 2, "b": 2}], [{}], [{"x": 0}],
            [{"a": -5, "b": -1, "c": -3}], [{"p": 1, "q": 4, "r": 4}], [{"u": 7, "v": 3, "w": 5}],
        ],
    ),
    "keys_above": (
        "return the sorted keys whose value is above limit",
        [
            [{"a": 1, "b": 5}, 2], [{"b": 5, "a": 5}, 4], [{"a": 3}, 3], [{}, 0], [{"a": 1, "b": 2, "c": 3}, 2],
            [{"x": -1, "y": 0}, -1], [{"k": 10}, 9], [{"d": 8, "c": 1, "a": 9}, 5],
        ],
    ),
    "group_by_first": (
        "return the words grouped by their first letter",
        [
            [["ant", "bee", "ape"]], [[]], [["x"]], [["cat", "cow"]], [["bee", "ant"]], [["ab", "ba"]],
            [["oak", "elm", "ash", "old"]], [["up", "us", "at"]],
        ],
    ),
    "total_of": (
        "return the sum of the values of keys, a missing key counts 0",
        [
            [{"a": 1, "b": 2}, ["a", "b"]], [{"a": 1}, ["b"]], [{}, ["a"]], [{"a": 1}, []], [{"a": 4, "b": 5}, ["b"]],
            [{"a": 2}, ["a", "a"]], [{"x": -3, "y": 3}, ["x", "y"]], [{"p": 7, "q": 1}, ["p", "z", "q"]],
        ],
    ),
    "pick_keys": (
        "return the part of table that has one of keys and a value other than None",
        [
            [{"a": 1, "b": 2}, ["a"]], [{"a": 1}, ["b"]], [{}, ["a"]], [{"a": 1, "b": 2}, []],
            [{"a": 1, "b": 2}, ["b", "a"]], [{"x": 5}, ["x", "y"]], [{"p": 0, "q": 1, "r": 2}, ["r", "p"]],
            [{"k": "v"}, ["k"]], [{"m": None, "n": 3}, ["m", "n"]],
        ],
    ),
    "without_key": (
        "return table without key",
        [
            [{"a": 1, "b": 2}, "a"], [{"a": 1}, "b"], [{}, "a"], [{"a": 1}, "a"], [{"x": 1, "y": 2, "z": 3}, "y"],
            [{"k": "v", "w": "k"}, "k"], [{"p": 5, "q": 6}, "q"], [{"m": None}, "n"],
        ],
    ),
    "nested_get": (
        "return table[outer][inner], or None if either is missing",
        [
            [{"a": {"x": 1}}, "a", "x"], [{"a": {"x": 1}}, "a", "y"], [{"a": {"x": 1}}, "b", "x"], [{}, "a", "x"],
            [{"a": {}}, "a", "x"], [{"k": {"v": 0}}, "k", "v"], [{"a": {"b": 2}, "b": {"a": 3}}, "b", "a"],
            [{"u": {"p": 5, "q": 6}}, "u", "q"],
        ],
    ),
    "changed_keys": (
        "return the sorted keys of new that are not in old or have another value there",
        [
            [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 1}], [{}, {"b": 1, "a": 1}], [{"a": 1}, {}],
            [{"a": 1, "b": 2}, {"b": 3, "a": 1}], [{"x": 0}, {"x": 0, "y": 0}], [{"k": 1, "m": 2}, {"m": 1, "k": 2}],
            [{"p": 5}, {"q": 5, "p": 5}],
        ],
    ),
    "rename_key": (
        "return table with the key old called new",
        [
            [{"a": 1, "b": 2}, "a", "c"], [{"a": 1}, "b", "c"], [{}, "a", "b"], [{"x": 5}, "x", "y"],
            [{"p": 1, "q": 2, "r": 3}, "q", "s"], [{"k": 0}, "k", "k"], [{"m": 1, "n": 2}, "n", "o"],
            [{"u": 4, "v": 5}, "w", "z"],
        ],
    ),
    "fill_missing": (
        "return table with value added under those keys that are missing",
        [
            [{"a": 1}, ["a", "b"], 0], [{}, ["x"], 5], [{"a": 1}, [], 9], [{"a": 1}, ["a"], 7],
            [{"p": 2}, ["q", "r"], 3], [{"k": 0}, ["k"], 1], [{}, ["m", "n"], 0], [{"u": 1, "v": 2}, ["v", "w"], 8],
        ],
    ),
    "rank_names": (
        "return the three names with the highest scores, equal scores by name",
        [
            [{"ann": 3, "bob": 5}], [{"b": 1, "a": 1}], [{}], [{"a": 1, "b": 2, "c": 3, "d": 4}],
            [{"z": 9, "y": 9, "x": 1, "w": 5}], [{"k": 0}], [{"d": 2, "c": 2, "b": 2, "a": 2}],
            [{"p": 10, "q": 7, "r": 8}],
        ],
    ),
}  # fmt: skip
