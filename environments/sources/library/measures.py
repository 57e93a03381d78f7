"""Small functions over units, thermometers, rulers, meters and tanks."""


def thermostat_on(temp, target, gap, was_on):
    if temp <= target - gap:
        return True
    if temp >= target + gap:
        return False
    return was_on


def heating_start(temps, limit, days):
    run = 0
    for i in range(len(temps)):
        run = run + 1 if temps[i] < limit else 0
        if run == days:
            return i
    return None


def convert_length(amount, unit, target):
    sizes = {"mm": 1, "cm": 10, "m": 1000}
    return amount * sizes[unit] // sizes[target]


def meter_used(before, now, wheels):
    top = 10**wheels
    if now < before:
        now += top
    return now - before


def fill_tanks(water, sizes):
    levels = []
    for size in sizes:
        part = min(water, size)
        levels.append(part)
        water -= part
    return levels


def mercury_bar(temp, low, width):
    marks = max(0, min(width, (temp - low) // 2))
    return "#" * marks + "." * (width - marks)


def trimmed_mean(readings):
    kept = sorted(readings)[1:-1]
    if not kept:
        return 0
    return sum(kept) // len(kept)


def ruler_tick(mm):
    if mm % 10 == 0:
        return "long"
    if mm % 5 == 0:
        return "middle"
    return "short"


CASES = {
    "thermostat_on": (
        "return True from gap below target down, False from gap above it up, else was_on",
        [
            [18, 20, 2, False], [22, 20, 2, True], [19, 20, 2, True], [19, 20, 2, False], [21, 20, 2, False],
            [21, 20, 2, True], [5, 10, 5, False], [15, 10, 5, True], [3, 20, 1, False], [30, 20, 1, True],
        ],
    ),
    "heating_start": (
        "return the first index that ends days values in a row below limit, or None",
        [
            [[9, 8, 7], 10, 2], [[9, 12, 8, 7], 10, 2], [[10, 9, 8], 10, 3], [[], 10, 1], [[5, 5, 5], 10, 3],
            [[12, 9], 10, 1], [[11, 10, 3], 10, 2], [[3, 15, 3, 15, 3], 10, 2], [[4, 4, 9, 4, 4, 4], 5, 3],
            [[10, 9, 9], 10, 2],
        ],
    ),
    "convert_length": (
        "return the whole number of target units in amount of unit, units are mm, cm and m",
        [
            [12, "m", "cm"], [25, "mm", "cm"], [2, "cm", "mm"], [1999, "mm", "m"], [250, "cm", "m"], [4, "m", "mm"],
            [7, "mm", "mm"], [40, "cm", "cm"], [0, "m", "cm"], [6, "m", "m"],
        ],
    ),
    "meter_used": (
        "return how far a meter with this many digit wheels went, it rolls over to 0",
        [
            [10, 25, 3], [990, 5, 3], [7, 7, 2], [9, 0, 1], [0, 9, 1], [98, 1, 2], [0, 0, 4], [9999, 9998, 4],
            [120, 121, 3],
        ],
    ),
    "fill_tanks": (
        "return the level in each tank when water fills them one after the other",
        [
            [10, [4, 4, 4]], [3, [5, 2]], [9, [4, 5]], [0, [3, 3]], [7, []], [20, [6, 2]], [5, [5, 1]], [6, [1, 2, 8]],
            [4, [0, 3, 3]],
        ],
    ),
    "mercury_bar": (
        "return width marks: # for each full 2 degrees of temp above low, the others are dots",
        [
            [6, 0, 5], [7, 0, 5], [0, 0, 3], [-4, 0, 3], [10, 0, 5], [30, 0, 4], [14, 10, 6], [-3, -10, 6], [19, 10, 3],
            [-2, 3, 4],
        ],
    ),
    "trimmed_mean": (
        "return the whole mean of readings without the lowest and the highest, or 0",
        [
            [[1, 5, 9]], [[9, 2, 4, 1]], [[3, 8]], [[]], [[6]], [[7, 7, 7]], [[2, 9, 4, 4, 5]], [[50, 10, 20, 30]],
            [[0, 100, 8, 9, 10]],
        ],
    ),
    "ruler_tick": (
        "return long at each 10 mm, middle at the 5 mm between, else short",
        [
            [0], [10], [5], [15], [1], [9], [11], [6], [40], [22],
        ],
    ),
}  # fmt: skip
