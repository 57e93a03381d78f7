"""Small functions about ballots, quorum, seats and thresholds."""


def motion_passes(yes, no, members):
    if 2 * (yes + no) < members:
        return False
    return yes > no


def over_threshold(votes, percent):
    total = sum(votes.values())
    return [party for party in sorted(votes) if votes[party] * 100 >= percent * total]


def count_ballots(ballots, names):
    counts = {}
    for ballot in ballots:
        key = ballot if ballot in names else "spoiled"
        counts[key] = counts.get(key, 0) + 1
    return counts


def runoff_names(counts):
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    if counts[ranked[0]] * 2 > sum(counts.values()):
        return ranked[:1]
    return ranked[:2]


def next_seat(votes, seats):
    best = 0
    for i in range(1, len(votes)):
        if votes[i] * (seats[best] + 1) > votes[best] * (seats[i] + 1):
            best = i
    return best


def borda_points(ballots, name):
    points = 0
    for ballot in ballots:
        if name in ballot:
            points += len(ballot) - ballot.index(name)
    return points


def ballot_valid(boxes, limit):
    marks = boxes.count("x")
    clean = all(box in "x-" for box in boxes)
    return clean and marks >= 1 and marks <= limit


CASES = {
    "motion_passes": (
        "return True if at least half of the members vote yes or no, and more yes than no",
        [
            [3, 2, 10], [3, 1, 10], [3, 3, 10], [2, 4, 10], [4, 1, 9], [3, 1, 9], [0, 0, 0], [6, 5, 11], [5, 0, 10],
            [1, 0, 3],
        ],
    ),
    "over_threshold": (
        "return the parties by name that have at least percent of all votes",
        [
            [{"a": 5, "b": 95}, 5], [{"a": 4, "b": 96}, 5], [{"x": 10}, 100], [{}, 5], [{"b": 2, "a": 2}, 50],
            [{"c": 7, "b": 2, "a": 1}, 20], [{"p": 0, "q": 3}, 0], [{"a": 6, "b": 1, "c": 13}, 30],
            [{"d": 1, "e": 1, "f": 1}, 34], [{"a": 100, "b": 101}, 50],
        ],
    ),
    "count_ballots": (
        "return how many ballots each of names got; all other ballots count as spoiled",
        [
            [["ann"], ["ann"]], [["bob"], ["ann"]], [[], ["ann"]], [["ann", "bob", "ann"], ["ann", "bob"]],
            [["", "x", "ann"], ["ann"]], [["a", "b", "c"], ["b"]], [["a", "a", "a"], ["a", "b"]],
            [["c", "b", "c", "d"], ["b", "c"]],
        ],
    ),
    "runoff_names": (
        "return the one name with more than half of the votes, else the two with the most",
        [
            [{"ann": 6, "bob": 4}], [{"ann": 5, "bob": 5}], [{"ann": 1}], [{"a": 4, "b": 3, "c": 2}],
            [{"a": 1, "b": 2, "c": 4}], [{"a": 1, "b": 7, "c": 5}], [{"x": 2, "y": 2, "z": 4}],
            [{"p": 3, "q": 3, "r": 3}], [{"k": 1, "l": 2, "m": 3, "n": 1}],
        ],
    ),
    "next_seat": (
        "return the index with the most votes per seat, each counted with one seat more than it has",
        [
            [[10, 8], [0, 0]], [[10, 8], [1, 0]], [[10, 5], [1, 0]], [[3], [2]], [[5, 9, 7], [0, 1, 0]],
            [[4, 6, 6], [0, 0, 0]], [[12, 6, 4], [2, 1, 0]], [[6, 1, 10], [1, 0, 2]], [[9, 3, 2], [3, 1, 0]],
        ],
    ),
    "borda_points": (
        "return the points of name: on a ballot of n names the first gets n, the last 1, others 0",
        [
            [[["a", "b"]], "a"], [[["a", "b"]], "b"], [[["a", "b"]], "c"], [[], "a"], [[["a", "b", "c"], ["b"]], "b"],
            [[["b", "a", "c"], ["c", "a"]], "a"], [[["a"], ["b"], ["a", "c"]], "a"], [[["d", "c", "b", "a"]], "c"],
            [[["a", "b"], ["c", "b"]], "b"],
        ],
    ),
    "ballot_valid": (
        "return True if boxes holds only x and -, with at least one x and at most limit",
        [
            ["x--", 1], ["xx-", 1], ["xx-", 2], ["---", 2], ["x?-", 2], ["", 1], ["x", 3], ["xxx-", 2], ["?x", 1],
            ["--?", 1],
        ],
    ),
}  # fmt: skip
