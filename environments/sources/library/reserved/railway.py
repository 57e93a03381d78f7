"""Small functions about trains, platforms, wagons and delays."""


def delay_word(planned, actual):
    late = actual - planned
    if late < 0:
        return "early"
    if late <= 5:
        return "on time"
    return "late"


def train_number_kind(number):
    if number % 2 == 0:
        way = "north"
    else:
        way = "south"
    return way + " local" if number >= 1000 else way + " express"


def doors_locked(wagons, platform):
    locked = []
    end = 0
    for name, length in wagons:
        end += length
        if end > platform:
            locked.append(name)
    return locked


def braking_distance(speed, grade):
    distance = speed * speed // 200
    return distance + distance * grade // 10


def platforms_needed(trains):
    most = 0
    for start, _ in trains:
        standing = [1 for a, b in trains if a <= start < b]
        most = max(most, len(standing))
    return most


def coupled(wagons, order):
    rest = list(wagons)
    for step in order:
        if step == "drop" and rest:
            rest.pop()
        elif step != "drop":
            rest.append(step)
    return rest


def missed_change(arrive, depart, walk):
    spare = depart - arrive - walk
    return -spare if spare < 0 else 0


def signal_aspect(free_blocks):
    if free_blocks == 0:
        return "red"
    return "yellow" if free_blocks < 3 else "green"


CASES = {
    "delay_word": (
        "return early before the planned time, on time up to 5 minutes after it, else late",
        [[10, 9], [10, 10], [10, 15], [10, 16], [0, 0], [30, 60], [30, 12], [59, 64], [59, 65]],
    ),
    "train_number_kind": (
        "return the way and kind of a train: even numbers go north, others south; from 1000 on local, else express",
        [[2], [1], [998], [999], [1000], [1001], [4410], [77], [0]],
    ),
    "doors_locked": (
        "return the names of the wagons, each [name, length], that end beyond the platform",
        [
            [[], 10], [[["a", 10]], 10], [[["a", 10]], 9], [[["a", 4], ["b", 6]], 10], [[["a", 4], ["b", 6]], 4],
            [[["a", 4], ["b", 6]], 3], [[["x", 5], ["y", 5], ["z", 5]], 9], [[["k", 2], ["l", 3], ["m", 4]], 6],
            [[["p", 1]], 0],
        ],
    ),
    "braking_distance": (
        "return the square of speed over 200, rounded down, and a tenth of it more for each point of grade",
        [[0, 0], [100, 0], [100, 1], [100, -2], [60, 5], [20, 10], [14, 0], [15, 3], [160, -10], [200, 2]],
    ),
    "platforms_needed": (
        "return the largest number of trains, each [arrives, leaves], that stand at once; one may come as another leaves",
        [
            [[]], [[[1, 2]]], [[[1, 3], [2, 4]]], [[[1, 2], [2, 3]]], [[[1, 9], [2, 3], [4, 5]]],
            [[[5, 8], [1, 6], [2, 7]]], [[[1, 4], [1, 4], [4, 6]]], [[[3, 4], [1, 2]]],
        ],
    ),
    "coupled": (
        "return the wagons after each step of order: drop takes off the last one, anything else is put at the end",
        [
            [[], []], [["a"], ["drop"]], [[], ["drop"]], [["a"], ["b"]], [["a", "b"], ["drop", "c"]],
            [["a"], ["b", "drop", "drop"]], [["a"], ["drop", "drop", "b"]], [["x", "y"], ["z", "w"]], [["p", "q"], ["drop"]],
        ],
    ),
    "missed_change": (
        "return by how many minutes a change with walk minutes to go is missed, 0 if it is reached",
        [[10, 20, 5], [10, 15, 5], [10, 14, 5], [10, 10, 0], [10, 8, 3], [0, 30, 45], [50, 55, 1], [7, 9, 4], [3, 3, 1]],
    ),
    "signal_aspect": (
        "return red if no block ahead is free, yellow below three, else green",
        [[0], [1], [2], [3], [4], [5], [10], [20]],
    ),
}  # fmt: skip
