"""Small functions over matrices given as lists of rows."""


def transpose(rows):
    out = []
    for i in range(len(rows[0])):
        out.append([row[i] for row in rows])
    return out


def row_totals(rows):
    out = []
    for row in rows:
        out.append(sum(row))
    return out


def trace_of(rows):
    total = 0
    for i in range(len(rows)):
        total += rows[i][i]
    return total


def identity(n):
    rows = []
    for i in range(n):
        rows.append([1 if i == j else 0 for j in range(n)])
    return rows


def add_matrices(left, right):
    out = []
    for i in range(len(left)):
        out.append([left[i][j] + right[i][j] for j in range(len(left[i]))])
    return out


def mirror_rows(rows):
    out = []
    for row in rows:
        out.append(row[::-1])
    return out


def column_max(rows, j):
    best = rows[0][j]
    for row in rows:
        if row[j] > best:
            best = row[j]
    return best


def count_cells(rows, value):
    count = 0
    for row in rows:
        count += row.count(value)
    return count


def is_square_grid(rows):
    for row in rows:
        if len(row) != len(rows):
            return False
    return True


def rotate_clockwise(rows):
    out = []
    for i in range(len(rows[0])):
        out.append([row[i] for row in rows[::-1]])
    return out


def scale_matrix(rows, factor, shift):
    out = []
    for row in rows:
        out.append([cell * factor + shift for cell in row])
    return out


def find_cell(rows, value):
    for i in range(len(rows)):
        for j in range(len(rows[i])):
            if rows[i][j] == value:
                return [i, j]
    return None


def lower_part(rows):
    out = []
    for i in range(len(rows)):
        out.append(rows[i][: i + 1])
    return out


def anti_diagonal(rows):
    n = len(rows)
    return [rows[i][n - 1 - i] for i in range(n)]


CASES = {
    "transpose": (
        "return rows with rows and columns exchanged",
        [
            [[[1, 2], [3, 4]]], [[[1, 2, 3]]], [[[1], [2]]], [[[5]]], [[[1, 2], [3, 4], [5, 6]]], [[[0, 1], [0, 2]]],
            [[["a", "b"]]], [[[7, 8, 9], [4, 5, 6]]],
        ],
    ),
    "row_totals": (
        "return the sum of each row",
        [
            [[[1, 2], [3, 4]]], [[]], [[[5]]], [[[], [1]]], [[[0, 0], [-1, 1]]], [[[2, 3, 4]]], [[[1], [2], [3]]],
            [[[10, -4], [6, 6]]],
        ],
    ),
    "trace_of": (
        "return the sum of the diagonal from top left to bottom right",
        [
            [[[1, 2], [3, 4]]], [[[5]]], [[]], [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]], [[[2, 9], [9, 3]]],
            [[[0, 1], [1, 0]]], [[[-1, 4], [5, -2]]], [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]],
        ],
    ),
    "identity": (
        "return the n by n matrix with ones on the diagonal and zeros elsewhere",
        [
            [0], [1], [2], [3], [4], [5], [6], [7],
        ],
    ),
    "add_matrices": (
        "return the sum of two matrices, cell by cell",
        [
            [[[1, 2]], [[3, 4]]], [[[1], [2]], [[5], [6]]], [[], []], [[[0]], [[7]]],
            [[[1, 1], [1, 1]], [[2, 3], [4, 5]]], [[[-1]], [[1]]], [[[9, 8, 7]], [[1, 2, 3]]],
            [[[2, 3], [4, 5]], [[1, 0], [0, 1]]],
        ],
    ),
    "mirror_rows": (
        "return rows with each row reversed",
        [
            [[[1, 2], [3, 4]]], [[[1, 2, 3]]], [[[1]]], [[]], [[[1], [2]]], [[["a", "b"], ["c", "d"]]],
            [[[0, 0, 1], [5, 6, 7]]], [[[], [1, 2]]],
        ],
    ),
    "column_max": (
        "return the largest value of column j",
        [
            [[[1, 9], [5, 2]], 0], [[[1, 9], [5, 2]], 1], [[[4]], 0], [[[3, 1], [3, 2]], 0], [[[-1], [-5]], 0],
            [[[0, 1, 2], [9, 8, 7], [3, 4, 5]], 2], [[[7, 0], [1, 1], [2, 6]], 1], [[[2], [8], [4]], 0],
        ],
    ),
    "count_cells": (
        "return how many cells of rows equal value",
        [
            [[[1, 2], [1, 1]], 1], [[[1, 2]], 3], [[], 0], [[[0, 0], [0]], 0], [[["x"], ["y"]], "x"],
            [[[5], [5], [5]], 5], [[[], [2]], 2], [[[1, 2, 3], [3, 2, 3]], 3],
        ],
    ),
    "is_square_grid": (
        "return True if there are as many rows as columns",
        [
            [[[1, 2], [3, 4]]], [[[1, 2]]], [[[1]]], [[]], [[[1], [2]]], [[[1, 2], [3]]],
            [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]], [[[1, 2, 3], [4, 5, 6]]],
        ],
    ),
    "rotate_clockwise": (
        "return rows turned by 90 degrees to the right",
        [
            [[[1, 2], [3, 4]]], [[[1, 2, 3]]], [[[1], [2]]], [[[5]]], [[[1, 2], [3, 4], [5, 6]]], [[[0, 1], [1, 0]]],
            [[["a"], ["b"], ["c"]]], [[[7, 8, 9], [4, 5, 6]]],
        ],
    ),
    "scale_matrix": (
        "return rows with each cell multiplied by factor and shift added",
        [
            [[[1, 2], [3, 4]], 2, 0], [[[5]], 0, 1], [[], 3, 2], [[[1, -1]], -1, 5], [[[2], [3]], 10, 1],
            [[[0, 7]], 5, -5], [[[4, 4], [1, 0]], 3, 2], [[[6]], 1, 4],
        ],
    ),
    "find_cell": (
        "return [row, column] of the first cell that equals value, or None",
        [
            [[[1, 2], [3, 4]], 3], [[[1, 2], [3, 4]], 2], [[[1]], 9], [[], 1], [[[5, 5]], 5], [[[0], [1], [2]], 2],
            [[["a", "b"], ["b", "a"]], "b"], [[[7, 8, 9]], 9],
        ],
    ),
    "lower_part": (
        "return of each row the cells up to and with the diagonal",
        [
            [[[1, 2], [3, 4]]], [[[1]]], [[]], [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]], [[[0, 0], [5, 5]]],
            [[["a", "b"], ["c", "d"]]], [[[6, 7]]], [[[1, 1, 1], [2, 2, 2]]],
        ],
    ),
    "anti_diagonal": (
        "return the diagonal from top right to bottom left",
        [
            [[[1, 2], [3, 4]]], [[[5]]], [[]], [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]], [[[0, 1], [1, 0]]],
            [[["a", "b"], ["c", "d"]]], [[[9, 8], [7, 6]]], [[[1, 1, 2], [1, 3, 1], [4, 1, 1]]],
        ],
    ),
}  # fmt: skip
