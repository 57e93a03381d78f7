"""Small functions over routes, timetables, luggage and stops."""


def next_departure(times, now):
    later = [t for t in times if t >= now]
    return min(later) if later else None


def bag_fee(bags):
    fee = 0
    for i in range(len(bags)):
        if i > 0:
            fee += 20
        if bags[i] > 23:
            fee += 15
    return fee


def stops_between(line, start, end):
    i = line.index(start)
    j = line.index(end)
    if i <= j:
        return line[i : j + 1]
    return line[j : i + 1][::-1]


def most_riders(stops):
    riders = 0
    most = 0
    for on, off in stops:
        riders += on - off
        most = max(most, riders)
    return most


def bags_needed(items, limit):
    bags = 1
    load = 0
    for item in items:
        if load + item > limit:
            bags += 1
            load = 0
        load += item
    return bags


def way_back(route):
    turned = {"N": "S", "S": "N", "E": "W", "W": "E"}
    back = ""
    for step in route:
        back = turned[step] + back
    return back


def zone_fare(zones, child):
    crossed = max(zones) - min(zones) + 1
    fare = min(crossed * 3, 10)
    return fare // 2 if child else fare


def flight_code_ok(text):
    airline = text[:2]
    number = text[2:]
    return airline.isupper() and number.isdigit() and len(number) <= 4


CASES = {
    "next_departure": (
        "return the earliest of times that is not before now, or None",
        [
            [[10, 20, 30], 15], [[10, 20, 30], 20], [[10, 20], 21], [[], 5], [[30, 12, 25], 11], [[8], 8],
            [[40, 7, 22, 35], 20], [[5, 6], 0], [[9, 3], 10],
        ],
    ),
    "bag_fee": (
        "return 20 for each bag after the first, and 15 for each bag above 23 kg",
        [
            [[]], [[10]], [[23]], [[24]], [[10, 10]], [[30, 5]], [[5, 30]], [[23, 24, 8]], [[25, 25, 25]],
        ],
    ),
    "stops_between": (
        "return the stops of line from start to end, both with them, in the order of the ride",
        [
            ["ABCDE", "B", "D"], ["ABCDE", "D", "B"], ["ABCDE", "A", "E"], ["ABCDE", "E", "A"], ["ABC", "B", "B"],
            ["WXYZ", "Y", "W"], [["zoo", "inn", "bay"], "bay", "zoo"], [["zoo", "inn", "bay"], "zoo", "inn"],
            ["PQRS", "Q", "S"],
        ],
    ),
    "most_riders": (
        "return the largest number of riders on the bus, stops are [on, off]",
        [
            [[[3, 0], [2, 1]]], [[[5, 0], [0, 3], [1, 0]]], [[]], [[[4, 0]]], [[[2, 0], [3, 2], [6, 1]]],
            [[[0, 0]]], [[[1, 0], [0, 1]]], [[[7, 0], [2, 6], [1, 4]]], [[[2, 0], [2, 0], [2, 0]]],
        ],
    ),
    "bags_needed": (
        "return how many bags of limit kg the items fill in their order, at least 1",
        [
            [[3, 4, 3], 7], [[3, 4], 7], [[], 5], [[5, 5, 5], 5], [[2, 2, 2, 2], 5], [[1], 9], [[6, 1, 6, 1], 7],
            [[4, 4, 2, 3], 8], [[1, 5, 5, 5], 10],
        ],
    ),
    "way_back": (
        "return the route back: the steps N, S, E, W turned round, the last one first",
        [
            ["N"], ["NE"], [""], ["SSW"], ["WN"], ["EES"], ["NWSE"], ["SW"], ["EN"],
        ],
    ),
    "zone_fare": (
        "return 3 for each zone from the lowest to the highest, at most 10, half for a child",
        [
            [[1], False], [[1, 2], False], [[2, 4], False], [[1, 5], False], [[2, 3, 1], True], [[4, 1], True],
            [[3], True], [[5, 6], True], [[3, 4, 6], False],
        ],
    ),
    "flight_code_ok": (
        "return True for two upper-case characters (U2 too), then 1 to 4 digits",
        [
            ["LH1234"], ["BA2024"], ["LH12345"], ["BA98765"], ["Uz7"], ["Lh12"], ["LH"], ["BA7"], ["BA7X"], ["U21"],
        ],
    ),
}  # fmt: skip
