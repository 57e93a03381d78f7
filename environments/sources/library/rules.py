"""Small functions that decide by rules: limits, states, grades."""


def letter_grade(score):
    if score >= 90:
        return "A"
    if score >= 75:
        return "B"
    if score >= 60:
        return "C"
    return "F"


def next_light(light, cars):
    if light == "green":
        return "yellow"
    if light == "yellow":
        return "red"
    return "green" if cars > 0 else "red"


def may_enter(age, with_adult):
    if age >= 18:
        return True
    return age >= 12 and with_adult


def password_ok(text):
    has_digit = any(ch.isdigit() for ch in text)
    has_upper = any(ch.isupper() for ch in text)
    return len(text) >= 8 and has_digit and has_upper


def fan_speed(temp):
    if temp < 20:
        return 0
    if temp > 40:
        return 100
    return (temp - 20) * 5


def duel_winner(left, right):
    beats = {"rock": "scissors", "paper": "rock", "scissors": "paper"}
    if left == right:
        return 0
    return 1 if beats[left] == right else 2


def retry_delay(attempt, base, limit):
    delay = base * 2**attempt
    return min(delay, limit)


def seat_name(index, width):
    row = index // width
    seat = index % width + 1
    return "ABCDEFGH"[row] + str(seat)


def ticket_price(age, student):
    if age < 6:
        return 0
    if age < 18 or student:
        return 5
    return 10


def stock_state(count, low):
    if count <= 0:
        return "empty"
    if count < low:
        return "low"
    return "ok"


def tank_level(level, flows, size):
    for flow in flows:
        level += flow
        level = max(0, min(level, size))
    return level


def match_points(results):
    points = 0
    for own, other in results:
        if own > other:
            points += 3
        elif own == other:
            points += 1
    return points


def parking_fee(minutes):
    if minutes <= 30:
        return 0
    hours = (minutes + 59) // 60
    return min(hours * 2, 12)


def elevator_stops(start, floors):
    moved = 0
    for floor in floors:
        moved += abs(floor - start)
        start = floor
    return moved


CASES = {
    "letter_grade": (
        "return A from 90, B from 75, C from 60, else F",
        [
            [95], [90], [89], [75], [74], [60], [59], [0], [100],
        ],
    ),
    "next_light": (
        "return the light after this one: green, yellow, red; red becomes green only if cars wait",
        [
            ["green", 0], ["green", 3], ["yellow", 0], ["yellow", 1], ["red", 0], ["red", 1], ["red", 5],
            ["green", 1],
        ],
    ),
    "may_enter": (
        "return True from age 18, and from age 12 with an adult",
        [
            [18, False], [17, False], [17, True], [12, True], [12, False], [11, True], [40, False], [5, False],
            [18, True],
        ],
    ),
    "password_ok": (
        "return True if text has at least 8 characters, a digit and an upper-case letter",
        [
            ["Passw0rd"], ["passw0rd"], ["Password"], ["Pa55"], ["ABCDEFG1"], ["Abcdef1"], [""], ["12345678"],
            ["longEnough99"],
        ],
    ),
    "fan_speed": (
        "return 0 below 20 degrees, 100 above 40, and 5 for each degree over 20 between",
        [
            [10], [19], [20], [21], [30], [39], [40], [41], [80],
        ],
    ),
    "duel_winner": (
        "return 1 if left wins at rock, paper, scissors, 2 if right wins, 0 for a draw",
        [
            ["rock", "scissors"], ["scissors", "rock"], ["paper", "rock"], ["rock", "paper"], ["scissors", "paper"],
            ["paper", "scissors"], ["rock", "rock"], ["paper", "paper"], ["lizard", "rock"],
        ],
    ),
    "retry_delay": (
        "return base doubled attempt times, but at most limit",
        [
            [0, 1, 100], [1, 1, 100], [3, 2, 100], [10, 1, 100], [5, 3, 96], [2, 5, 10], [4, 1, 16], [0, 50, 20],
        ],
    ),
    "seat_name": (
        "return the seat like A1 for an index, with width seats in a row",
        [
            [0, 4], [3, 4], [4, 4], [7, 4], [8, 4], [5, 10], [19, 10], [1, 1],
        ],
    ),
    "ticket_price": (
        "return 0 below age 6, 5 below 18 or for students, else 10",
        [
            [5, False], [6, False], [17, False], [18, False], [18, True], [3, True], [40, True], [40, False],
            [12, True],
        ],
    ),
    "stock_state": (
        "return empty for nothing left, low below the number low, else ok",
        [
            [0, 5], [1, 5], [4, 5], [5, 5], [6, 5], [-1, 5], [10, 3], [2, 1], [1, 1],
        ],
    ),
    "tank_level": (
        "return the level after all flows, each time kept between 0 and size",
        [
            [5, [3], 10], [5, [6], 10], [5, [-6], 10], [0, [], 10], [5, [10, -3], 10], [5, [-9, 4], 10],
            [1, [1, 1, 1], 3], [9, [1], 10],
        ],
    ),
    "match_points": (
        "return 3 points for each win and 1 for each draw, results are [own, other] goals",
        [
            [[[2, 1]]], [[[1, 1]]], [[[0, 1]]], [[]], [[[3, 0], [2, 2]]], [[[0, 0], [1, 2], [4, 3]]],
            [[[5, 4], [6, 1]]], [[[1, 3], [2, 3]]],
        ],
    ),
    "parking_fee": (
        "return 0 up to 30 minutes, else 2 for each started hour, at most 12",
        [
            [0], [30], [31], [60], [61], [120], [121], [360], [361], [600],
        ],
    ),
    "elevator_stops": (
        "return how many floors are passed on the way from start to all floors in turn",
        [
            [0, [3]], [0, []], [5, [5]], [0, [3, 1]], [2, [0, 4]], [1, [2, 3, 4]], [10, [0]], [3, [7, 7, 2]],
        ],
    ),
}  # fmt: skip
