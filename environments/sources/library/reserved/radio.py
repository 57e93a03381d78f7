"""Small functions about stations, signals, dials and call signs."""


def nearest_channel(frequency, first, step):
    if frequency < first:
        return 0
    return (frequency - first + step // 2) // step


def signal_bars(strength):
    limits = [-100, -85, -70, -55]
    return sum(1 for limit in limits if strength >= limit)


def seek_up(stations, now):
    above = [station for station in stations if station > now]
    below = [station for station in stations if station < now]
    return min(above) if above else min(below, default=now)


def call_sign_ok(sign):
    if len(sign) < 3 or len(sign) > 6:
        return False
    digits = [char for char in sign if char.isdigit()]
    return sign[0].isupper() and len(digits) == 1 and not sign[-1].isdigit()


def morse_length(code):
    length = 0
    for mark in code:
        length += 3 if mark == "-" else 1
    return length + max(len(code) - 1, 0)


def spell_out(word, table):
    spoken = []
    for letter in word.upper():
        spoken.append(table.get(letter, letter))
    return " ".join(spoken)


def free_slot(shows, length):
    time = 0
    for start, end in sorted(shows):
        if start - time >= length:
            break
        time = max(time, end)
    return time


def volume_after(volume, presses, muted):
    for press in presses:
        if press == "mute":
            muted = not muted
        elif press == "up":
            volume = min(volume + 2, 20)
        else:
            volume = max(volume - 2, 0)
    return 0 if muted else volume


CASES = {
    "nearest_channel": (
        "return the number of the channel nearest to frequency, the first is 0 and each step a new one, halves go up",
        [
            [875, 875, 2], [876, 875, 2], [877, 875, 2], [870, 875, 2], [100, 90, 10], [104, 90, 10], [105, 90, 10],
            [90, 90, 10], [57, 50, 5], [58, 50, 4],
        ],
    ),
    "signal_bars": (
        "return the bars of a signal: one from -100, two from -85, three from -70, four from -55",
        [[-100], [-101], [-85], [-86], [-70], [-71], [-55], [-56], [0]],
    ),
    "seek_up": (
        "return the next station above now, from the lowest again after the highest, now if there is no other",
        [
            [[], 5], [[5], 5], [[4], 5], [[6], 5], [[9, 7, 3], 5], [[1, 2, 3], 3], [[1, 2, 3], 1], [[8, 4, 6], 6],
            [[2, 3, 4], 9],
        ],
    ),
    "call_sign_ok": (
        "return True for 3 to 6 characters, an upper-case one first, with exactly one digit, which is not the last",
        [
            ["K1A"], ["K1"], ["W1ABCD"], ["W1ABCDE"], ["k1ab"], ["K12A"], ["KABC"], ["KAB1"], ["DL5XY"], [""], ["1KAB"],
        ],
    ),
    "morse_length": (
        "return how long a letter like .- takes: a dot 1, a dash 3, and 1 between two marks",
        [[""], ["."], ["-"], [".-"], ["--"], ["..."], ["-.-."], ["-----"], [".----"]],
    ),
    "spell_out": (
        "return what is said for each letter of word in upper case: the word of table, or the letter",
        [
            ["", {}], ["a", {"A": "alfa"}], ["A", {"A": "alfa"}], ["ab", {"A": "alfa"}], ["ba", {"A": "alfa", "B": "bravo"}],
            ["a1", {"A": "alfa", "1": "one"}], ["xyz", {}], ["aab", {"B": "bravo"}],
        ],
    ),
    "free_slot": (
        "return the earliest time at which length is free between shows, each [start, end], or after all of them",
        [
            [[], 5], [[[5, 9]], 5], [[[4, 9]], 5], [[[0, 3], [6, 8]], 3], [[[6, 8], [0, 3]], 4], [[[0, 9], [2, 4]], 2],
            [[[0, 2], [2, 5]], 1], [[[1, 2], [3, 4], [9, 11]], 5], [[[2, 3]], 1],
        ],
    ),
    "volume_after": (
        "return the volume heard after presses: up and down by 2 between 0 and 20, mute turns the sound off or on",
        [
            [10, [], False], [10, [], True], [10, ["up"], False], [20, ["up"], False], [0, ["down"], False],
            [19, ["up", "down"], False], [6, ["mute"], False], [6, ["mute", "up"], True], [1, ["down", "up"], False],
            [8, ["mute", "down", "mute"], False],
        ],
    ),
}  # fmt: skip
