"""Small functions about letters, parcels, stamps and rounds."""


def stamp_price(grams):
    if grams <= 20:
        return 85
    if grams <= 50:
        return 100
    return 100 + (grams - 50 + 49) // 50 * 60


def parcel_class(length, width, height):
    girth = length + 2 * (width + height)
    if girth > 300 or max(length, width, height) > 120:
        return "freight"
    return "small" if girth <= 90 else "parcel"


def zip_region(code):
    if len(code) != 5 or not code.isdigit():
        return None
    return code[:2]


def sides_of_street(houses):
    odd = sorted(house for house in houses if house % 2 == 1)
    even = sorted(house for house in houses if house % 2 == 0)
    return odd + even[::-1]


def stamps_for(price, values):
    stamps = []
    for value in sorted(values, reverse=True):
        while price >= value:
            stamps.append(value)
            price -= value
    return stamps if price == 0 else []


def next_pickup(hour, pickups):
    later = [time for time in pickups if time > hour]
    if later:
        return min(later)
    return min(pickups) + 24


def address_lines(name, street, town):
    lines = [name.strip(), street.strip(), town.strip().upper()]
    return [line for line in lines if line != ""]


def sack_loads(weights, limit):
    loads = [0]
    for weight in weights:
        if loads[-1] + weight > limit:
            loads.append(0)
        loads[-1] += weight
    return loads


CASES = {
    "stamp_price": (
        "return 85 up to 20 grams, 100 up to 50, and 60 more for each started 50 grams above",
        [[1], [20], [21], [50], [51], [100], [101], [150], [240]],
    ),
    "parcel_class": (
        "return freight if length and twice width and height are above 300 or a side above 120, small up to 90, else parcel",
        [
            [30, 15, 15], [30, 15, 16], [120, 40, 50], [121, 10, 10], [10, 121, 1], [100, 50, 50], [101, 50, 50],
            [1, 1, 122], [10, 10, 10], [40, 20, 5],
        ],
    ),
    "zip_region": (
        "return the first two digits of a code of five digits, None for any other",
        [["12345"], ["1234"], ["123456"], ["1234a"], ["00700"], [""], ["abcde"], ["98 76"], ["55555"]],
    ),
    "sides_of_street": (
        "return the houses in the order of a round: odd numbers upwards, then even numbers downwards",
        [[[]], [[1]], [[2]], [[1, 2, 3, 4]], [[4, 2]], [[3, 1]], [[8, 5, 2, 9]], [[10, 7, 6, 1, 12]], [[2, 4, 6]]],
    ),
    "stamps_for": (
        "return the stamps that make price, always the largest value that still fits; an empty list if some is left",
        [
            [100, [50]], [85, [50, 20, 5]], [0, [10]], [7, [5]], [5, [5]], [4, [5, 2]], [30, [10, 20]], [6, [3, 4]],
            [60, [25, 5, 30]],
        ],
    ),
    "next_pickup": (
        "return the hour of the first pickup after hour, plus 24 if it is on the next day",
        [
            [9, [10]], [10, [10]], [11, [10]], [8, [12, 9]], [12, [9, 18]], [18, [9, 18]], [23, [17, 7]], [0, [0, 6]],
            [5, [16, 6, 11]],
        ],
    ),
    "address_lines": (
        "return the lines that are not empty, without spaces around them and the town in upper case",
        [
            ["Ann", "Lane 1", "Bree"], [" Ann ", "Lane 1", "Bree"], ["Ann", "", "Bree"], ["", "Lane 1", " ash"],
            ["Ann", "  ", ""], ["", "", ""], ["Bo", " Mill 2", "Old Elm "], ["Cy", "Way 3 ", "DORN"],
        ],
    ),
    "sack_loads": (
        "return the weight in each sack when letters are put in the last sack, and in a new one where limit is passed",
        [
            [[], 5], [[5], 5], [[3, 2], 5], [[3, 3], 5], [[6], 5], [[1, 1, 1], 2], [[4, 1, 2, 3], 5], [[2, 2, 2, 2], 4],
            [[9, 1, 8, 3, 2], 10],
        ],
    ),
}  # fmt: skip
