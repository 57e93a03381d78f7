"""Small functions for games: cards, dice, boards and turns."""


def hand_value(cards):
    total = sum(cards)
    if 1 in cards and total + 10 <= 21:
        total += 10
    return total


def can_play(card, top):
    if card[0] == "wild":
        return True
    return card[0] == top[0] or card[1] == top[1]


def square_color(square):
    column = "abcdefgh".index(square[0])
    row = int(square[1])
    return "light" if (column + row) % 2 == 0 else "dark"


def bounce_move(place, roll, last):
    place += roll
    if place > last:
        return 2 * last - place
    return place


def best_pair(dice):
    for face in range(6, 0, -1):
        if dice.count(face) >= 2:
            return face * 2
    return 0


def last_standing(players, step):
    i = 0
    while len(players) > 1:
        i = (i + step - 1) % len(players)
        players = players[:i] + players[i + 1 :]
    return players[0]


def trick_winner(cards, trump):
    best = 0
    for i in range(1, len(cards)):
        same = cards[i][0] == cards[best][0]
        if same and cards[i][1] > cards[best][1]:
            best = i
        elif not same and cards[i][0] == trump:
            best = i
    return best


def next_turn(seat, players, card):
    steps = {"skip": 2, "back": -1}
    return (seat + steps.get(card, 1)) % players


CASES = {
    "hand_value": (
        "return the sum of cards; one ace, a 1, counts as 11 if the sum stays at most 21",
        [
            [[1, 10]], [[1, 10, 1]], [[1, 1]], [[10, 9]], [[1, 4, 6]], [[1, 5, 6]], [[]], [[5, 6]], [[10, 1, 9]],
            [[1]],
        ],
    ),
    "can_play": (
        "return True if card, a [color, number], has the color or the number of top, or is wild",
        [
            [["red", 5], ["red", 2]], [["red", 5], ["blue", 5]], [["red", 5], ["blue", 2]],
            [["wild", 0], ["blue", 2]], [["green", 1], ["green", 9]], [["green", 7], ["green", 7]],
            [["green", 1], ["red", 3]], [["wild", 0], ["red", 7]], [["blue", 2], ["red", 2]],
            [["green", 0], ["wild", 0]],
        ],
    ),
    "square_color": (
        "return the color of a chess square, dark or light; a1 is dark",
        [
            ["a1"], ["a2"], ["b1"], ["b2"], ["h8"], ["h1"], ["d5"], ["e5"], ["c6"], ["g3"],
        ],
    ),
    "bounce_move": (
        "return the new place after a roll; a step beyond last goes back from last instead",
        [
            [0, 3, 10], [8, 2, 10], [8, 3, 10], [9, 6, 10], [10, 1, 10], [5, 4, 10], [20, 6, 24], [22, 5, 24],
            [0, 1, 1],
        ],
    ),
    "best_pair": (
        "return the sum of the highest pair among dice, or 0",
        [
            [[1, 2, 3]], [[5, 5, 1]], [[6, 6, 5, 5]], [[1, 1]], [[6, 6, 6]], [[]], [[6, 2, 3, 2, 1]], [[2, 2, 3, 3, 6]],
            [[1, 6, 1, 5]],
        ],
    ),
    "last_standing": (
        "return who is left when players stand in a ring and each time the step-th one leaves",
        [
            [["a"], 1], [["a", "b"], 1], [["a", "b"], 2], [["a", "b", "c"], 2], [["a", "b", "c"], 3],
            [["a", "b", "c", "d"], 2], [["a", "b", "c", "d", "e"], 3], [["x", "y", "z", "w"], 5], [[1, 2, 3, 4, 5], 2],
        ],
    ),
    "trick_winner": (
        "return the index of the winning [suit, rank] card: highest trump or else first suit, first if equal",
        [
            [[["H", 9]], "S"], [[["S", 9], ["S", 4]], "S"], [[["H", 4], ["H", 9]], "S"],
            [[["H", 9], ["S", 2]], "S"], [[["H", 4], ["D", 9]], "S"], [[["S", 3], ["S", 8], ["H", 9]], "S"],
            [[["C", 2], ["D", 5], ["C", 7], ["C", 4]], "H"], [[["D", 9], ["D", 4], ["H", 2], ["H", 2]], "H"],
            [[["C", 5], ["C", 8], ["S", 9], ["C", 8]], "D"], [[["H", 6], ["C", 3], ["C", 2], ["H", 9]], "C"],
        ],
    ),
    "next_turn": (
        "return the seat that is next in the ring: one on, two on after skip, one back after back",
        [
            [0, 4, "plain"], [3, 4, "plain"], [0, 4, "skip"], [2, 4, "skip"], [0, 4, "back"], [2, 4, "back"],
            [3, 5, "skip"], [1, 3, "plain"], [4, 5, "back"],
        ],
    ),
}  # fmt: skip
