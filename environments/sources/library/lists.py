"""Small functions over one or two lists."""


def take_until(values, stop):
    out = []
    for v in values:
        if v == stop:
            break
        out.append(v)
    return out


def gaps(values):
    out = []
    for i in range(len(values) - 1):
        out.append(values[i + 1] - values[i])
    return out


def second_largest(values):
    ordered = sorted(set(values))
    if len(ordered) < 2:
        return None
    return ordered[-2]


def chunk(values, size):
    out = []
    for i in range(0, len(values), size):
        out.append(values[i : i + size])
    return out


def rotate_right(values, step):
    if not values:
        return []
    k = len(values) - step % len(values)
    return values[k:] + values[:k]


def index_of_max(values):
    best = 0
    for i in range(1, len(values)):
        if values[i] > values[best]:
            best = i
    return best


def running_total(values):
    total = 0
    out = []
    for v in values:
        total += v
        out.append(total)
    return out


def count_rises(values):
    count = 0
    for i in range(1, len(values)):
        if values[i] > values[i - 1]:
            count += 1
    return count


def drop_ends(values, n):
    if 2 * n >= len(values):
        return []
    return values[n : len(values) - n]


def interleave(left, right):
    out = []
    for i in range(min(len(left), len(right))):
        out.append(left[i])
        out.append(right[i])
    return out


def dedupe_neighbors(values):
    out = []
    for v in values:
        if not out or out[-1] != v:
            out.append(v)
    return out


def last_index(values, target):
    for i in range(len(values) - 1, -1, -1):
        if values[i] == target:
            return i
    return -1


def split_by(values, pivot):
    low = [v for v in values if v < pivot]
    high = [v for v in values if v >= pivot]
    return [low, high]


def insert_sorted(values, x):
    i = 0
    while i < len(values) and values[i] < x:
        i += 1
    return values[:i] + [x] + values[i:]


CASES = {
    "take_until": (
        "return the values before the first stop",
        [
            [[1, 2, 3, 4], 3], [[1, 2], 9], [[], 1], [[5, 1, 5], 5], [[1, 5, 2, 5], 5], [["a", "b"], "b"],
            [[0, 0, 1], 1], [[7], 7],
        ],
    ),
    "gaps": (
        "return the difference of each value to the one before it",
        [
            [[1, 4, 9]], [[5]], [[]], [[3, 3]], [[10, 7, 1]], [[0, 1, 0, 1]], [[2, 5]], [[-3, 3, -3]],
        ],
    ),
    "second_largest": (
        "return the second largest different value, or None",
        [
            [[3, 1, 2]], [[5, 5, 4]], [[7]], [[]], [[2, 2]], [[1, 2]], [[9, 8, 9, 7]], [[-1, -5, -3]], [[4, 1, 3, 2]],
        ],
    ),
    "chunk": (
        "return values cut into pieces of size, the last one may be shorter",
        [
            [[1, 2, 3, 4], 2], [[1, 2, 3], 2], [[], 3], [[1, 2, 3], 1], [[1], 5], [[1, 2, 3, 4, 5, 6], 3],
            [["a", "b", "c"], 3], [[0, 1, 2, 3, 4], 4],
        ],
    ),
    "rotate_right": (
        "return values with the last step ones moved to the front",
        [
            [[1, 2, 3, 4], 1], [[1, 2, 3], 0], [[1, 2, 3], 2], [[], 2], [[1, 2, 3], 4], [[9], 3], [["a", "b"], 1],
            [[1, 2, 3, 4, 5], 3],
        ],
    ),
    "index_of_max": (
        "return the index of the first largest value",
        [
            [[1, 3, 2]], [[5, 1, 5]], [[7]], [[1, 2, 3]], [[3, 2, 1]], [[2, 2]], [[-5, -1, -3]], [[0, 4, 9, 9]],
            [[1, 9, 2, 8]],
        ],
    ),
    "running_total": (
        "return the sums of the first one, two, three and more values",
        [
            [[1, 2, 3]], [[5]], [[]], [[0, 0]], [[3, -1, 4]], [[-2, -2]], [[10, 20, 30, 40]], [[1, -1, 1]],
        ],
    ),
    "count_rises": (
        "return how often a value is larger than the one before it",
        [
            [[1, 2, 3]], [[3, 2, 1]], [[1, 1]], [[]], [[4]], [[1, 3, 2, 5]], [[2, 2, 3]], [[5, 1, 2, 2, 9]],
            [[9, 1, 2]],
        ],
    ),
    "drop_ends": (
        "return values without the first n and the last n, or an empty list",
        [
            [[1, 2, 3, 4, 5], 1], [[1, 2, 3, 4], 2], [[1, 2, 3], 1], [[1, 2], 1], [[], 0], [[1, 2, 3], 0],
            [[1, 2, 3], 2], [[5, 6, 7, 8, 9], 2],
        ],
    ),
    "interleave": (
        "return the values of left and right in turn, as long as both have one",
        [
            [[1, 3], [2, 4]], [[1], [2, 3]], [[1, 2], [9]], [[], [1]], [[], []], [["a"], ["b"]],
            [[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 0]],
        ],
    ),
    "dedupe_neighbors": (
        "return values without those equal to the one right before",
        [
            [[1, 1, 2]], [[1, 2, 1]], [[]], [[3, 3, 3]], [[4]], [[1, 2, 2, 3, 3, 1]], [["a", "a"]], [[0, 0, 1, 1, 0]],
        ],
    ),
    "last_index": (
        "return the last index at which target stands, or -1",
        [
            [[1, 2, 1], 1], [[1, 2, 3], 3], [[1, 2, 3], 9], [[], 1], [[5], 5], [[7, 8, 8, 9], 8], [[4, 1, 2], 4],
            [[2, 2], 2], [["a", "b", "c"], "a"],
        ],
    ),
    "split_by": (
        "return two lists: values below pivot, then values of pivot and above",
        [
            [[1, 5, 3], 3], [[1, 2], 5], [[7, 8], 2], [[], 0], [[3, 3], 3], [[4, 1, 9, 2], 4], [[-1, 0, 1], 0],
            [[6, 5], 6],
        ],
    ),
    "insert_sorted": (
        "return the sorted list values with x put at its place",
        [
            [[1, 3, 5], 4], [[1, 2], 3], [[2, 3], 1], [[], 5], [[1, 1], 1], [[10, 20, 30], 20], [[1, 4, 6, 9], 5],
            [[-2, 0], -1],
        ],
    ),
}  # fmt: skip
