"""Small functions that search, compare and select in sequences."""


def first_missing(values):
    n = 1
    while n in values:
        n += 1
    return n


def longest_rise(values):
    best = 0
    run = 0
    for i in range(len(values)):
        run = run + 1 if i > 0 and values[i] > values[i - 1] else 1
        best = max(best, run)
    return best


def window_sums(values, size):
    out = []
    for i in range(len(values) - size + 1):
        out.append(sum(values[i : i + size]))
    return out


def pairs_with_sum(values, target):
    count = 0
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if values[i] + values[j] == target:
                count += 1
    return count


def majority_value(values):
    for v in values:
        if values.count(v) * 2 > len(values):
            return v
    return None


def nearest_value(values, target):
    best = values[0]
    for v in values:
        if abs(v - target) < abs(best - target):
            best = v
    return best


def find_sorted(values, target):
    low = 0
    high = len(values)
    while low < high:
        mid = (low + high) // 2
        if values[mid] < target:
            low = mid + 1
        else:
            high = mid
    return low


def is_alternating(values):
    for i in range(1, len(values)):
        if values[i] == values[i - 1]:
            return False
    return True


def local_peaks(values):
    out = []
    for i in range(1, len(values) - 1):
        if values[i] > values[i - 1] and values[i] > values[i + 1]:
            out.append(i)
    return out


def count_between(values, low, high):
    count = 0
    for v in values:
        if low <= v and v <= high:
            count += 1
    return count


def is_subsequence(small, big):
    i = 0
    for v in big:
        if i < len(small) and v == small[i]:
            i += 1
    return i == len(small)


def median_of(values):
    ordered = sorted(values)
    mid = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[mid]
    return (ordered[mid - 1] + ordered[mid]) // 2


def step_sequence(start, step, n):
    out = []
    for i in range(n):
        out.append(start + i * step)
    return out


def only_in_first(left, right):
    out = []
    for v in left:
        if v not in right and v not in out:
            out.append(v)
    return out


CASES = {
    "first_missing": (
        "return the smallest whole number from 1 that is not in values",
        [
            [[1, 2, 4]], [[]], [[2, 3]], [[1]], [[3, 1, 2]], [[0, 1, 1]], [[5, 4, 2, 1]], [[-1, 7]],
        ],
    ),
    "longest_rise": (
        "return the length of the longest stretch in which each value is larger than the one before",
        [
            [[1, 2, 3]], [[3, 2, 1]], [[]], [[5]], [[1, 2, 2, 3, 4]], [[1, 3, 2, 4, 6, 8]], [[2, 2]], [[0, 5, 1]],
            [[4, 1, 2, 3]],
        ],
    ),
    "window_sums": (
        "return the sums of each size neighbouring values",
        [
            [[1, 2, 3], 2], [[1, 2, 3], 1], [[1, 2, 3], 3], [[1, 2], 3], [[], 1], [[5, 5, 5, 5], 2],
            [[1, -1, 1, -1], 3], [[4, 0, 2, 7, 1], 2],
        ],
    ),
    "pairs_with_sum": (
        "return how many pairs of positions have values that add up to target",
        [
            [[1, 2, 3], 4], [[2, 2, 2], 4], [[1, 2], 9], [[], 0], [[5], 10], [[1, 3, 2, 2], 4], [[0, 0], 0],
            [[-1, 1, 4, 6], 5],
        ],
    ),
    "majority_value": (
        "return the value that is more than half of values, or None",
        [
            [[1, 1, 2]], [[1, 2]], [[]], [[7]], [[3, 3, 4, 4]], [[2, 5, 5]], [["a", "b", "a", "a"]], [[1, 2, 3]],
            [[6, 6, 1, 2]],
        ],
    ),
    "nearest_value": (
        "return the value nearest to target, the first of equals",
        [
            [[1, 5, 9], 6], [[1, 5], 3], [[4], 10], [[10, 2], 2], [[-3, 3], 0], [[8, 7, 6], 0], [[1, 2, 3], 9],
            [[5, 1, 4], 2],
        ],
    ),
    "find_sorted": (
        "return the first index of the sorted values that holds at least target",
        [
            [[1, 3, 5], 3], [[1, 3, 5], 4], [[1, 3, 5], 0], [[1, 3, 5], 9], [[], 1], [[2, 2, 2], 2],
            [[1, 2, 2, 3], 2], [[7], 7], [[10, 20, 30, 40], 25],
        ],
    ),
    "is_alternating": (
        "return True if no two neighbours in values are equal",
        [
            [[1, 2, 1]], [[1, 1]], [[]], [[5]], [[1, 2, 2]], [[0, 1, 0, 1]], [["a", "b", "a"]], [[3, 3, 4]],
            [[1, 2, 3, 1]],
        ],
    ),
    "local_peaks": (
        "return the indices of values that are larger than both neighbours",
        [
            [[1, 3, 2]], [[1, 2, 3]], [[3, 2, 1]], [[]], [[1, 5, 1, 5, 1]], [[2, 2, 1]], [[0, 4, 4, 0]], [[1, 9]],
            [[5, 6, 3, 7, 2, 8]],
        ],
    ),
    "count_between": (
        "return how many values are from low to high, both included",
        [
            [[1, 5, 9], 2, 6], [[1, 5, 9], 1, 9], [[1, 5, 9], 6, 8], [[], 0, 1], [[3, 3], 3, 3], [[0, 10], 1, 9],
            [[-5, 0, 5], -5, 0], [[2, 4, 6, 8], 4, 7],
        ],
    ),
    "is_subsequence": (
        "return True if small is left over when some values of big are taken out",
        [
            [[1, 3], [1, 2, 3]], [[3, 1], [1, 2, 3]], [[], [1]], [[1], []], [[1, 1], [1]], [[2, 2], [2, 1, 2]],
            ["ace", "abcde"], ["aec", "abcde"], [[4], [4]], [[], []],
        ],
    ),
    "median_of": (
        "return the middle of the sorted values, of two middle ones the mean rounded down",
        [
            [[3, 1, 2]], [[1, 2]], [[5]], [[4, 1, 3, 2]], [[7, 7, 7]], [[1, 4]], [[9, 1, 5, 3, 7]], [[10, 2, 8, 4]],
            [[-1, -4]],
        ],
    ),
    "step_sequence": (
        "return n numbers from start, each step larger than the one before",
        [
            [1, 2, 3], [0, 5, 4], [7, 0, 2], [1, 1, 0], [10, -3, 4], [5, 2, 1], [-2, 2, 3], [3, 10, 2],
        ],
    ),
    "only_in_first": (
        "return the different values of left that are not in right",
        [
            [[1, 2, 3], [2]], [[1, 1, 2], [3]], [[], [1]], [[1], []], [[4, 5], [5, 4]], [["a", "b"], ["b", "c"]],
            [[3, 2, 3, 1], [1]], [[7, 8, 9], [1, 8]],
        ],
    ),
}  # fmt: skip
