"""Small functions about scores, tables, sets and relays."""


def set_won(own, other):
    if own == 7 and other == 6:
        return True
    return own >= 6 and own - other >= 2


def goal_difference(matches):
    table = {}
    for home, away, scored, lost in matches:
        table[home] = table.get(home, 0) + scored - lost
        table[away] = table.get(away, 0) + lost - scored
    return table


def relay_time(times, size):
    if len(times) < size:
        return None
    return sum(sorted(times)[:size])


def darts_left(score, throws):
    for throw in throws:
        left = score - throw
        if left == 0 or left >= 2:
            score = left
    return score


def place_of(table, team):
    better = [name for name in table if table[name] > table[team]]
    return len(better) + 1


def rally_winner(rallies, goal):
    won = {"A": 0, "B": 0}
    for side in rallies:
        won[side] += 1
        if won[side] >= goal and abs(won["A"] - won["B"]) >= 2:
            return side
    return None


def round_pairs(teams):
    pairs = []
    for i in range(len(teams) // 2):
        pairs.append([teams[i], teams[-1 - i]])
    return pairs


def server_at(points):
    if points >= 10:
        return points % 2
    return points // 2 % 2


CASES = {
    "set_won": (
        "return True if a set is won: at least 6 games and 2 more than the other, or 7 to 6",
        [
            [6, 4], [6, 5], [7, 5], [7, 6], [8, 7], [6, 0], [5, 3], [7, 7], [5, 6], [5, 2],
        ],
    ),
    "goal_difference": (
        "return for each team goals scored less goals lost, matches are [home, away, scored, lost]",
        [
            [[["a", "b", 2, 1]]], [[["a", "b", 0, 3]]], [[]], [[["x", "y", 1, 1]]],
            [[["a", "b", 2, 0], ["b", "a", 1, 0]]], [[["a", "b", 3, 1], ["b", "c", 4, 2]]],
            [[["a", "b", 1, 0], ["a", "c", 2, 0]]], [[["b", "a", 5, 1], ["c", "a", 1, 2]]],
        ],
    ),
    "relay_time": (
        "return the time of the size fastest runners together, or None if there are fewer",
        [
            [[12, 10, 11], 2], [[12, 10], 2], [[12], 2], [[], 1], [[9, 15, 14, 8], 3], [[11, 13], 1], [[20, 10, 30], 3],
            [[10, 11, 12], 4], [[5], 1],
        ],
    ),
    "darts_left": (
        "return the score left after all throws, one that would leave 1 or less than 0 is not counted",
        [
            [50, [20, 10]], [20, [20]], [20, [19]], [20, [18]], [20, [21, 5]], [40, []], [2, [1, 2]], [60, [60, 1]],
            [10, [3, 6, 5]],
        ],
    ),
    "place_of": (
        "return the place of team in a table of points, teams with equal points share a place",
        [
            [{"a": 3, "b": 1}, "a"], [{"a": 3, "b": 1}, "b"], [{"a": 4, "b": 4}, "b"], [{"a": 0}, "a"],
            [{"a": 5, "b": 7, "c": 6}, "a"], [{"a": 5, "b": 7, "c": 6}, "c"], [{"x": 2, "y": 2, "z": 1}, "z"],
            [{"p": 9, "q": 1, "r": 1, "s": 0}, "q"], [{"m": 8, "n": 6, "o": 6}, "m"],
        ],
    ),
    "rally_winner": (
        "return the side A or B that first has at least goal rallies and leads by 2, or None",
        [
            ["AAA", 3], ["BBB", 3], ["AA", 3], ["BB", 3], ["BABAAA", 3], ["ABABBAAA", 3], ["", 2], ["ABAB", 2],
            ["BABB", 3], ["ABBABABB", 4],
        ],
    ),
    "round_pairs": (
        "return the pairs of first and last team, second and last but one, and so on",
        [
            [["a", "b"]], [["a", "b", "c"]], [[]], [["a"]], [["a", "b", "c", "d"]], [[1, 2, 3, 4, 5]],
            [[1, 2, 3, 4, 5, 6]], [[7, 7, 8, 9]],
        ],
    ),
    "server_at": (
        "return who serves, 0 or 1: it changes every 2 points, and from 10 points on every point",
        [
            [0], [1], [2], [4], [7], [9], [10], [11], [13], [14],
        ],
    ),
}  # fmt: skip
