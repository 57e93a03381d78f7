"""Small functions over log lines and event lists: levels, streaks, gaps, sessions."""


def messages_of(lines, level):
    mark = level + ": "
    return [line[len(mark) :] for line in lines if line.startswith(mark)]


def worst_level(levels):
    order = ["debug", "info", "warn", "error"]
    worst = 0
    for level in levels:
        worst = max(worst, order.index(level))
    return order[worst]


def tail_streak(results, want):
    count = 0
    while count < len(results) and results[-1 - count] == want:
        count += 1
    return count


def session_spans(times, pause):
    spans = []
    for time in times:
        if spans and time - spans[-1][1] <= pause:
            spans[-1][1] = time
        else:
            spans.append([time, time])
    return spans


def total_outage(events):
    total = 0
    since = None
    for time, state in events:
        if state == "down" and since is None:
            since = time
        elif state == "up" and since is not None:
            total += time - since
            since = None
    return total


def still_open(events):
    opened = []
    for event in events:
        name = event[1:]
        if event[0] == "+":
            opened.append(name)
        elif name in opened:
            opened.remove(name)
    return opened


def first_burst(times, size, window):
    for i in range(len(times) - size + 1):
        if times[i + size - 1] - times[i] <= window:
            return times[i]
    return None


CASES = {
    "messages_of": (
        "return what follows the level and its colon, for the lines of this level",
        [
            [["err: disk", "info: up"], "err"], [["info: a", "info: b"], "info"], [[], "err"], [["warn: hot"], "err"],
            [["error: x", "err: y"], "err"], [["a: b: a", "b: c"], "a"], [["ok", "ok: 1"], "ok"],
            [["warn: z", "no warn: ", "warn: "], "warn"],
        ],
    ),
    "worst_level": (
        "return the most severe of levels: debug, info, warn, error; debug for none",
        [
            [["info", "warn"]], [["error", "info"]], [[]], [["debug"]], [["info", "debug"]], [["warn", "error"]],
            [["debug", "warn", "info"]], [["info"]], [["warn", "debug"]],
        ],
    ),
    "tail_streak": (
        "return how many of the last results in a row are what want says",
        [
            [["ok", "ok"], "ok"], [["ok", "bad"], "ok"], [["bad", "ok", "ok"], "ok"], [[], "ok"],
            [["ok", "bad", "bad"], "bad"], [["bad", "ok", "bad"], "bad"], [["ok"], "bad"], [[1, 0, 1, 1, 1], 1],
            [[2, 2, 3, 2], 2],
        ],
    ),
    "session_spans": (
        "return [first, last] time of each session; a wait longer than pause starts a new one",
        [
            [[1, 2, 3], 1], [[1, 3], 1], [[], 5], [[4], 2], [[0, 5, 11, 16], 5], [[1, 2, 9, 10], 3], [[7, 7], 0],
            [[0, 4, 5, 12], 4], [[3, 10, 20], 6],
        ],
    ),
    "total_outage": (
        "return the time spent down in all, events are [time, state]; one still open counts nothing",
        [
            [[[1, "down"], [4, "up"]]], [[[2, "down"]]], [[]], [[[0, "down"], [3, "down"], [5, "up"]]],
            [[[3, "up"], [5, "down"], [9, "up"]]], [[[1, "down"], [2, "up"], [6, "up"]]],
            [[[0, "down"], [2, "up"], [4, "down"], [9, "up"]]], [[[2, "on"], [4, "down"], [7, "up"]]],
            [[[1, "down"], [2, "down"], [4, "up"], [6, "up"], [9, "up"]]],
            [[[1, "down"], [3, "up"], [3, "down"], [8, "up"]]],
        ],
    ),
    "still_open": (
        "return the names that were opened, like +a, and not closed again, like -a, in order",
        [
            [["+a"]], [["+a", "-a"]], [[]], [["+a", "+b", "-a"]], [["-a", "+a"]], [["+ab", "+cd", "-xy"]],
            [["+x", "+x", "-x"]], [["+b", "+a", "+c", "-a"]], [["-q"]], [["+one", "+two"]],
        ],
    ),
    "first_burst": (
        "return the first time at which size events come within window, or None",
        [
            [[1, 2, 3], 2, 1], [[1, 5, 6], 2, 1], [[1, 3, 9], 2, 1], [[], 2, 5], [[0, 4, 6, 7], 3, 3], [[2], 1, 0],
            [[1, 2, 3, 9], 4, 8], [[0, 5, 10, 14], 3, 9], [[5, 6], 3, 10], [[3, 7, 11], 3, 7],
        ],
    ),
}  # fmt: skip
