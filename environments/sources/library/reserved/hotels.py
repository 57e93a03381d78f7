"""Small functions about rooms, guests, nights and keys."""


def floor_of_room(number):
    if number < 100:
        raise ValueError(number)
    return number // 100


def nights_cost(nights, rate, long_stay):
    if nights >= long_stay:
        return nights * rate - rate
    return nights * rate


def room_free(bookings, start, end):
    for first, last in bookings:
        if first < end and start < last:
            return False
    return start < end


def beds_left(rooms, guests):
    left = sum(rooms)
    for party in guests:
        if party <= left:
            left -= party
    return left


def smallest_room(rooms, people):
    fitting = [name for name in rooms if rooms[name] >= people]
    if not fitting:
        return ""
    return min(fitting, key=lambda name: (rooms[name], name))


def late_checkout(hour, fee):
    if hour <= 11:
        return 0
    return fee if hour <= 14 else fee * 2


def rooms_to_clean(states):
    dirty = [room for room, state in states.items() if state == "left"]
    stay = [room for room, state in states.items() if state == "stay"]
    return sorted(dirty) + sorted(stay)


def door_opens(code, digits, tries):
    if tries >= 3:
        return False
    return len(digits) >= 4 and digits[-4:] == code


CASES = {
    "floor_of_room": (
        "return the floor of a room number like 207, ValueError for a number below 100",
        [[100], [99], [207], [199], [200], [0], [1012], [-5], [999]],
    ),
    "nights_cost": (
        "return the price of all nights; from long_stay nights on one of them is free",
        [
            [1, 50, 7], [6, 50, 7], [7, 50, 7], [8, 50, 7], [0, 50, 7], [3, 10, 3], [2, 10, 3], [1, 9, 1], [14, 30, 10],
        ],
    ),
    "room_free": (
        "return True if the nights from start up to end, end excluded, touch no booking and are at least one",
        [
            [[], 1, 2], [[], 2, 2], [[], 3, 2], [[[1, 3]], 3, 5], [[[1, 3]], 2, 5], [[[4, 6]], 1, 4], [[[4, 6]], 1, 5],
            [[[2, 9]], 4, 5], [[[1, 2], [5, 7]], 2, 5], [[[1, 2], [5, 7]], 2, 6],
        ],
    ),
    "beds_left": (
        "return the beds left when parties come in turn and those too large for what is left go away",
        [
            [[], []], [[2], [2]], [[2], [3]], [[2, 3], [4, 2, 1]], [[4], [3, 2, 1]], [[1, 1], []], [[5, 5], [6, 5, 3]],
            [[2, 2], [1, 1, 1]], [[3], [4, 4, 3]],
        ],
    ),
    "smallest_room": (
        "return the room with the fewest beds that are enough, the first by name if equal, or an empty string",
        [
            [{}, 1], [{"a": 2}, 2], [{"a": 2}, 3], [{"b": 2, "a": 2}, 1], [{"a": 4, "b": 3}, 3], [{"a": 4, "b": 3}, 4],
            [{"x": 1, "y": 5, "z": 6}, 2], [{"k": 2, "j": 3, "i": 3}, 3], [{"m": 1}, 0],
        ],
    ),
    "late_checkout": (
        "return what leaving at hour costs: nothing until 11, fee until 14, later twice the fee",
        [[11, 20], [12, 20], [14, 20], [15, 20], [0, 20], [23, 15], [13, 0], [10, 5], [16, 1]],
    ),
    "rooms_to_clean": (
        "return the rooms to clean: those that guests left by name, then those in which they stay by name",
        [
            [{}], [{"2": "left", "1": "left"}], [{"1": "stay", "2": "left"}], [{"1": "free"}],
            [{"9": "stay", "3": "stay", "5": "free"}], [{"4": "left", "7": "free", "2": "stay", "1": "left"}],
            [{"b": "stay", "a": "stay", "c": "left"}], [{"x": "closed", "y": "left"}],
        ],
    ),
    "door_opens": (
        "return True if the last four digits that were typed are code and less than three tries failed before",
        [
            ["1234", "1234", 0], ["1234", "91234", 2], ["1234", "1234", 3], ["1234", "12345", 0], ["1234", "234", 0],
            ["0000", "", 1], ["234", "234", 0], ["1234", "12341", 1], ["5555", "15555", 4], ["4321", "4321", 2],
        ],
    ),
}  # fmt: skip
