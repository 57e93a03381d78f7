"""Small functions about stitches, rows, yarn and patterns."""


def stitch_at(pattern, row, column):
    line = pattern[row % len(pattern)]
    return line[column % len(line)]


def cast_on(width, gauge, edge):
    stitches = width * gauge // 10
    if stitches % 2 == 1:
        stitches += 1
    return stitches + 2 * edge


def balls_of_yarn(metres, ball):
    balls = metres // ball
    if metres % ball > 0:
        balls += 1
    return max(balls, 1)


def spell_row(row):
    words = []
    for piece in row.split():
        mark, count = piece[0], int(piece[1:])
        name = "knit" if mark == "k" else "purl"
        words.append(name + " " + str(count))
    return ", ".join(words)


def row_width(row):
    width = 0
    for mark in row:
        if mark == "i":
            width += 2
        elif mark != "d":
            width += 1
    return width


def decrease_rows(start, goal, every):
    rows = []
    row = every
    while start - 2 >= goal:
        start -= 2
        rows.append(row)
        row += every
    return rows


def rib_wrong(row, size):
    wrong = []
    for i in range(len(row)):
        want = "k" if i // size % 2 == 0 else "p"
        if row[i] != want:
            wrong.append(i)
    return wrong


def longest_float(row, color):
    best = run = 0
    for mark in row:
        run = 0 if mark == color else run + 1
        best = max(best, run)
    return best


CASES = {
    "stitch_at": (
        "return the stitch of pattern in row and column; it repeats in both directions",
        [
            [["kp", "pk"], 0, 0], [["kp", "pk"], 1, 0], [["kp", "pk"], 2, 1], [["kkp"], 5, 2], [["kkp"], 0, 3],
            [["abc", "de"], 1, 2], [["abc", "de"], 3, 5], [["x"], 9, 9], [["ab", "cd", "ef"], 5, 1],
        ],
    ),
    "cast_on": (
        "return the stitches for width at gauge in 10, rounded down and then up to an even number, and edge on both sides",
        [
            [10, 20, 0], [10, 21, 0], [5, 22, 1], [0, 20, 2], [15, 22, 0], [33, 10, 1], [1, 9, 0], [20, 18, 3], [19, 30, 2],
        ],
    ),
    "balls_of_yarn": (
        "return how many balls are needed for metres of yarn, at least one",
        [[0, 50], [1, 50], [49, 50], [50, 50], [51, 50], [100, 50], [149, 50], [7, 3], [120, 40]],
    ),
    "spell_row": (
        "return a row like k3 p2 in words: knit 3, purl 2",
        [["k3 p2"], ["k1"], ["p4"], [""], ["p1 p2"], ["k10 p12 k10"], ["k2  p2"], ["p0 k5"]],
    ),
    "row_width": (
        "return how many stitches a row leaves: an increase i makes two, a decrease d none, all others one",
        [[""], ["k"], ["i"], ["d"], ["kid"], ["kkii"], ["ddk"], ["pppid"], ["iid"], ["kpkp"]],
    ),
    "decrease_rows": (
        "return the rows, each every after the one before, in which two stitches go, as long as goal are left",
        [[10, 10, 2], [10, 9, 2], [10, 8, 2], [10, 7, 3], [12, 6, 4], [5, 6, 1], [9, 0, 1], [4, 0, 5], [30, 25, 10]],
    ),
    "rib_wrong": (
        "return the places where row is no rib: size times k, size times p, and so on",
        [
            ["kpkp", 1], ["kkpp", 2], ["kkpp", 1], ["", 1], ["p", 1], ["kkkpp", 3], ["kkppkp", 2], ["pkpk", 1],
            ["kkkkk", 2], ["kxp", 2],
        ],
    ),
    "longest_float": (
        "return the length of the longest stretch of row without color",
        [["", "r"], ["r", "r"], ["b", "r"], ["rbbr", "r"], ["bbrb", "r"], ["rbrbb", "r"], ["bbb", "r"], ["abcab", "a"],
         ["aabba", "b"]],
    ),
}  # fmt: skip
