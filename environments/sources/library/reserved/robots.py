"""Small functions about robots that roll, load, sort and recharge."""


def robot_place(x, y, steps):
    for step in steps:
        if step in "LR":
            x += 1 if step == "R" else -1
        else:
            y += 1 if step == "U" else -1
    return [x, y]


def facing_after(facing, turns):
    compass = "NESW"
    place = compass.index(facing)
    for turn in turns:
        place += 1 if turn == "R" else 3
    return compass[place % 4]


def charge_left(charge, trips, cost):
    for trip in trips:
        need = trip * cost
        if need > charge:
            charge = 100
        charge -= need
    return charge


def arm_reaches(lengths, distance):
    longest = max(lengths)
    nearest = max(2 * longest - sum(lengths), 0)
    return nearest <= distance and distance <= sum(lengths)


def sort_to_bins(parts, limits):
    bins = [[] for _ in limits] + [[]]
    for part in parts:
        place = sum(1 for limit in limits if part > limit)
        bins[place].append(part)
    return bins


def wall_follow(front, right):
    if not right:
        return "turn right"
    if front:
        return "turn left"
    return "go"


def swept_cells(width, row):
    cells = list(range(width))
    return cells if row % 2 == 0 else cells[::-1]


def bumps(path, walls):
    count = 0
    place = 0
    for step in path:
        if place + step in walls:
            count += 1
        else:
            place += step
    return count


CASES = {
    "robot_place": (
        "return [x, y] after the steps R and L along x, and U and any other along y",
        [
            [0, 0, ""], [0, 0, "R"], [0, 0, "L"], [0, 0, "U"], [0, 0, "D"], [2, 3, "RRU"], [1, 1, "LDLD"], [5, 0, "URDL"],
            [-1, 4, "DDDR"],
        ],
    ),
    "facing_after": (
        "return N, E, S or W after the turns R to the right and L to the left",
        [["N", ""], ["N", "R"], ["N", "L"], ["W", "R"], ["E", "L"], ["S", "RR"], ["S", "LL"], ["E", "RRRL"], ["W", "LLL"]],
    ),
    "charge_left": (
        "return the charge after trips that take cost for each unit; where it is too little it is filled to 100 first",
        [
            [50, [], 2], [50, [10], 2], [20, [10], 2], [19, [10], 2], [0, [1], 5], [30, [10, 10], 3], [100, [20, 20, 20], 2],
            [8, [0], 9], [60, [30, 5], 2],
        ],
    ),
    "arm_reaches": (
        "return True if an arm of these lengths reaches distance: at most their sum, nor nearer than the longest folds back",
        [
            [[3, 2], 5], [[3, 2], 6], [[3, 2], 1], [[3, 2], 0], [[2, 2], 0], [[5, 1, 1], 3], [[5, 1, 1], 2], [[4], 4],
            [[4], 3], [[1, 6, 2], 3],
        ],
    ),
    "sort_to_bins": (
        "return parts in bins: those up to the first limit, up to the second and so on, and above the last",
        [
            [[], [5]], [[5, 6], [5]], [[1, 2], []], [[3, 9, 6], [3, 6]], [[10, 1], [2, 4]], [[4, 4, 5], [4, 8]],
            [[7], [1, 2, 3]], [[2, 8, 1, 9], [5]],
        ],
    ),
    "wall_follow": (
        "return turn right if there is no wall on the right, else turn left if one is in front, else go",
        [
            [False, False], [True, False], [False, True], [True, True], [0, 1], [1, 1], [1, 0], [0, 0],
        ],
    ),
    "swept_cells": (
        "return the cells of a row in the order they are swept: even rows upwards, odd ones downwards",
        [[0, 0], [1, 1], [3, 0], [3, 1], [2, 5], [4, 2], [5, 3], [2, 4]],
    ),
    "bumps": (
        "return how often a robot that starts at 0 would step into a wall; it stays where it is then",
        [
            [[], [1]], [[1], [1]], [[1], []], [[1, 1], [1]], [[1, 1], [2]], [[-1, 1, 1], [1]], [[2, 2, -2], [4]],
            [[1, 2, 1, -1], [3, 0]], [[3, -3, 3], [0]],
        ],
    ),
}  # fmt: skip
