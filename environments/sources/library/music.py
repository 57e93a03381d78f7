"""Small functions over notes, beats, bars and playlists."""


def half_steps(note):
    step = "C D EF G A B".index(note[0])
    if note.endswith("#"):
        step += 1
    elif note.endswith("b"):
        step -= 1
    return step % 12


def easy_leap(low, high):
    gap = abs(high - low)
    return gap <= 5 or gap == 7 or gap == 12


def bar_of_beat(beat, sizes):
    for i in range(len(sizes)):
        if beat < sizes[i]:
            return i + 1
        beat -= sizes[i]
    return 0


def bars_fit(notes, size):
    filled = 0
    for length in notes:
        filled += length
        if filled > size:
            return False
        filled = filled % size
    return filled == 0


def next_track(now, count, repeat):
    if repeat == "one":
        return now
    if now + 1 < count:
        return now + 1
    return 0 if repeat == "all" else None


def longest_by_artist(songs):
    longest = {}
    for artist, length in songs:
        longest[artist] = max(longest.get(artist, 0), length)
    return longest


def drum_line(hits, size):
    marks = ["x" if i in hits else "." for i in range(size)]
    return "".join(marks)


CASES = {
    "half_steps": (
        "return how many half steps a note like F, F# or Gb is above C, from 0 to 11",
        [
            ["C"], ["C#"], ["Db"], ["Cb"], ["B#"], ["F"], ["Gb"], ["A#"], ["B"], ["Eb"],
        ],
    ),
    "easy_leap": (
        "return True if two notes are at most 5, or exactly 7 or 12 half steps apart",
        [
            [60, 65], [55, 50], [60, 66], [66, 60], [60, 67], [67, 60], [60, 72], [72, 60], [73, 60], [50, 50],
        ],
    ),
    "bar_of_beat": (
        "return the bar, from 1, that holds the beat counted from 0, or 0 after the last bar",
        [
            [0, [4, 4]], [3, [4, 4]], [4, [4, 4]], [8, [4, 4]], [5, [3, 2, 4]], [4, [3, 2, 4]], [8, [3, 2, 4]], [0, []],
            [9, [3, 2, 4]], [2, [2, 2]],
        ],
    ),
    "bars_fit": (
        "return True if the note lengths fill whole bars of size and no note crosses a bar line",
        [
            [[2, 2], 4], [[3, 2, 3], 4], [[1, 1, 2, 4], 4], [[2, 1], 4], [[], 3], [[5, 3], 4], [[3, 3], 3],
            [[1, 2, 2, 1], 3], [[2, 1, 3, 1], 3], [[2, 2, 2], 3],
        ],
    ),
    "next_track": (
        "return the next index below count, the same for one; at the end 0 for all, else None",
        [
            [0, 3, "off"], [2, 3, "off"], [2, 3, "all"], [1, 3, "one"], [2, 3, "one"], [1, 3, "all"], [0, 1, "all"],
            [0, 1, "off"], [3, 5, "off"], [4, 5, "all"],
        ],
    ),
    "longest_by_artist": (
        "return a table with the length of the longest song of each artist, songs are [artist, length]",
        [
            [[["abba", 3], ["abba", 5]]], [[["abba", 5], ["abba", 3]]], [[]], [[["cher", 4]]],
            [[["cher", 4], ["abba", 2]]], [[["x", 2], ["y", 9], ["x", 7]]], [[["x", 0], ["y", 1]]], [[["y", 0]]],
            [[["z", 6], ["z", 6], ["y", 2], ["y", 1]]],
        ],
    ),
    "drum_line": (
        "return a line of size marks, x at the places in hits and dots elsewhere",
        [
            [[0], 4], [[0, 2], 4], [[], 3], [[3], 4], [[4], 4], [[1, 1], 2], [[0], 1], [[5, 0, 3], 6], [[0], 0],
        ],
    ),
}  # fmt: skip
