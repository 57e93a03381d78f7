"""Small functions about rain, wind, clouds and forecasts."""


def wind_force(knots):
    force = 0
    for limit in [1, 4, 7, 11, 17, 22]:
        if knots >= limit:
            force += 1
    return force


def wind_name(degrees):
    names = ["north", "east", "south", "west"]
    return names[(degrees + 45) // 90 % 4]


def longest_dry(rain):
    best = days = 0
    for amount in rain:
        if amount > 0:
            days = 0
            continue
        days += 1
        best = max(best, days)
    return best


def feels_like(temp, wind):
    if temp > 10 or wind < 5:
        return temp
    return temp - wind // 5


def wettest_week(rain):
    best = 0
    for start in range(0, len(rain), 7):
        best = max(best, sum(rain[start : start + 7]))
    return best


def storm_warning(readings, drop):
    for before, after in zip(readings, readings[3:]):
        if before - after >= drop:
            return True
    return False


def sky_words(eighths):
    if eighths == 0:
        return "clear"
    if eighths == 8:
        return "overcast"
    return "fair" if eighths <= 4 else "cloudy"


def forecast_hits(forecast, seen):
    hits = 0
    for day in range(min(len(forecast), len(seen))):
        if forecast[day] == seen[day]:
            hits += 1
    return hits


CASES = {
    "wind_force": (
        "return the force of a wind: 1 from 1 knot, 2 from 4, 3 from 7, 4 from 11, 5 from 17, 6 from 22",
        [[0], [1], [3], [4], [7], [10], [11], [16], [17], [21], [22], [60]],
    ),
    "wind_name": (
        "return north, east, south or west, whichever is nearest to degrees; halves belong to the next one",
        [[0], [44], [45], [90], [134], [135], [225], [314], [315], [359], [720]],
    ),
    "longest_dry": (
        "return the largest number of days in a row without rain",
        [[[]], [[0]], [[3]], [[0, 0, 1, 0]], [[1, 0, 0]], [[0, 2, 0, 0, 0, 5]], [[4, 4]], [[0, 0, 0]], [[0, 1, 0, 1, 0]]],
    ),
    "feels_like": (
        "return temp less 1 for each full 5 of wind; temp itself above 10 degrees or below a wind of 5",
        [[10, 5], [11, 5], [10, 4], [0, 20], [-5, 9], [-5, 10], [25, 40], [3, 0], [9, 14], [12, 3]],
    ),
    "wettest_week": (
        "return the rain of the wettest week; weeks start every seven days, the last one may be shorter",
        [
            [[]], [[3]], [[1, 1, 1, 1, 1, 1, 1]], [[1, 1, 1, 1, 1, 1, 1, 9]], [[0, 0, 0, 0, 0, 0, 5, 1]],
            [[2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4]], [[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 3]],
            [[4, 4, 0, 0, 0, 0, 0, 7]],
        ],
    ),
    "storm_warning": (
        "return True if the pressure falls by at least drop between a reading and the third one after it",
        [
            [[], 5], [[9, 8, 7], 1], [[10, 9, 8, 5], 5], [[10, 9, 8, 6], 5], [[10, 10, 10, 10, 4], 5],
            [[1, 2, 3, 4], 1], [[20, 5, 20, 20, 20], 9], [[8, 8, 8, 8], 0], [[30, 12, 11, 28, 3, 1], 9],
        ],
    ),
    "sky_words": (
        "return clear for no eighth of cloud, overcast for 8, fair up to 4, else cloudy",
        [[0], [1], [3], [4], [5], [6], [7], [8]],
    ),
    "forecast_hits": (
        "return on how many days that both have the forecast is what was seen",
        [
            [[], []], [["sun"], ["sun"]], [["sun"], ["rain"]], [["sun", "rain"], ["sun"]], [["sun"], ["rain", "sun"]],
            [["a", "b", "c"], ["a", "x", "c"]], [["a", "a"], ["a", "a"]], [["b", "c", "a"], ["c", "b", "a"]],
            [["x", "y", "z"], ["x", "y"]],
        ],
    ),
}  # fmt: skip
