"""Small functions about beds, seeds, frost and harvests."""


def seeds_to_sow(rows, per_row, spare):
    if rows <= 0 or per_row <= 0:
        return 0
    total = rows * per_row
    return total + total * spare // 100


def bed_thirsty(dry_days, heat, mulched):
    limit = 5 if mulched else 3
    if heat > 30:
        limit -= 1
    return dry_days >= limit


def last_frost(lows):
    last = -1
    for night in range(len(lows)):
        if lows[night] <= 0:
            last = night
    return last + 1


def ripe_weight(picks, ripe):
    total = 0
    for weight, age in picks:
        if age < ripe:
            continue
        total += weight
    return total


def plant_spots(length, gap):
    spots = []
    place = gap // 2
    while place + gap // 2 <= length:
        spots.append(place)
        place += gap
    return spots


def bad_neighbours(row, foes):
    pairs = []
    for left, right in zip(row, row[1:]):
        if right in foes.get(left, []) or left in foes.get(right, []):
            pairs.append(left + "-" + right)
    return pairs


def crop_after(crop, order):
    if crop not in order:
        return order[0]
    return order[(order.index(crop) + 1) % len(order)]


def sprout_percent(sown, sprouted):
    share = sum(sprouted) * 100 // sum(sown) if sum(sown) else 0
    return min(share, 100)


CASES = {
    "seeds_to_sow": (
        "return the seeds for rows of per_row plants and spare percent more, rounded down; 0 if there is nothing to plant",
        [
            [3, 10, 0], [3, 10, 10], [0, 10, 10], [4, 0, 50], [-1, 5, 0], [2, -3, 0], [1, 1, 100], [1, 19, 5], [5, 7, 20],
            [1, 2, 50],
        ],
    ),
    "bed_thirsty": (
        "return True after 3 dry days, 5 on a mulched bed, one day less if heat is above 30",
        [
            [3, 20, False], [2, 20, False], [2, 31, False], [2, 30, False], [5, 30, True], [4, 30, True], [4, 31, True],
            [3, 35, True], [1, 40, False], [0, 0, True],
        ],
    ),
    "last_frost": (
        "return the number of the last night, counted from 1, whose low is at most zero, or 0",
        [
            [[]], [[3]], [[0]], [[-2, 4]], [[5, -1]], [[1, 0, 2, 3]], [[-3, -2, -1]], [[2, 1, 1]], [[-1, 5, 0, 6, 1]],
        ],
    ),
    "ripe_weight": (
        "return the weight of all picks, each [weight, age], that are at least ripe days old",
        [
            [[], 3], [[[5, 3]], 3], [[[5, 2]], 3], [[[5, 4], [7, 2]], 3], [[[1, 0], [2, 1], [4, 2]], 1],
            [[[6, 9], [3, 9]], 9], [[[2, 8], [3, 1], [9, 8]], 5], [[[4, 0]], 0],
        ],
    ),
    "plant_spots": (
        "return where plants stand that need gap each, half of it to both ends of the row at least",
        [
            [10, 2], [9, 2], [1, 2], [2, 2], [0, 4], [12, 4], [11, 4], [20, 10], [25, 10], [7, 3],
        ],
    ),
    "bad_neighbours": (
        "return the pairs like a-b that are side by side in row, although foes of one of them lists the other",
        [
            [[], {}], [["pea"], {"pea": ["pea"]}], [["pea", "leek"], {"pea": ["leek"]}],
            [["leek", "pea"], {"pea": ["leek"]}], [["pea", "kale", "leek"], {"pea": ["leek"]}],
            [["a", "b", "a"], {"b": ["a"]}], [["a", "b", "c"], {"a": ["c"], "b": ["c"]}], [["a", "a"], {"a": ["b"]}],
            [["x", "y", "z"], {"z": ["y"], "x": ["z"]}],
        ],
    ),
    "crop_after": (
        "return the crop after this one in order, the first after the last and for a crop that is not there",
        [
            ["bean", ["bean", "kale"]], ["kale", ["bean", "kale"]], ["rye", ["bean", "kale"]], ["a", ["a"]], ["b", ["a"]],
            ["b", ["a", "b", "c"]], ["c", ["a", "b", "c"]], ["a", ["c", "b", "a", "d"]], ["d", ["c", "b", "a", "d"]],
        ],
    ),
    "sprout_percent": (
        "return how many percent of the sown seeds sprouted, at most 100, and 0 if none were sown",
        [
            [[], []], [[10], [5]], [[10], [0]], [[0], [3]], [[3], [1]], [[4, 4], [4, 5]], [[8, 2], [2, 2]], [[7], [7]],
            [[5, 15], [1, 3]], [[200], [1]],
        ],
    ),
}  # fmt: skip
