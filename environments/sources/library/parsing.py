"""Small functions that read structure out of text."""


def parse_pair(text):
    i = text.find("=")
    if i < 0:
        return [text, ""]
    return [text[:i], text[i + 1 :]]


def int_or(text, default):
    if text.lstrip("-").isdigit():
        return int(text)
    return default


def version_parts(text):
    parts = text.split(".")
    while len(parts) < 3:
        parts.append("0")
    return [int(part) for part in parts]


def newer_version(left, right):
    a = [int(part) for part in left.split(".")]
    b = [int(part) for part in right.split(".")]
    return left if a >= b else right


def query_table(text):
    table = {}
    for item in text.split("&"):
        if "=" in item:
            key, value = item.split("=", 1)
            table[key] = value
    return table


def strip_comment(line):
    i = line.find("#")
    if i >= 0:
        line = line[:i]
    return line.rstrip()


def indent_level(line):
    spaces = len(line) - len(line.lstrip(" "))
    return spaces // 4


def file_extension(path):
    name = path.split("/")[-1]
    i = name.rfind(".")
    if i <= 0:
        return ""
    return name[i + 1 :].lower()


def parse_range(text):
    parts = text.split("-")
    first = int(parts[0])
    last = int(parts[-1])
    return list(range(first, last + 1))


def unquote(text):
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def csv_cells(line):
    if not line.strip():
        return []
    return [cell.strip() for cell in line.split(",")]


def binary_value(text):
    total = 0
    for ch in text:
        total = total * 2 + int(ch)
    return total


def parse_size(text):
    unit = text[-1].lower()
    if unit == "k":
        return int(text[:-1]) * 1024
    return int(text)


def line_number(text, position):
    before = text[:position]
    return before.count("\n") + 1


CASES = {
    "parse_pair": (
        "return [key, value] of text like key=value, the value is empty without =",
        [
            ["a=1"], ["a"], ["a="], ["=b"], [""], ["k=v=w"], ["name=ann"], ["x1=22"],
        ],
    ),
    "int_or": (
        "return text as a whole number, or default if it is none",
        [
            ["12", 0], ["-5", 0], ["abc", 7], ["", 3], ["1.5", 9], ["0", 4], ["-", 2], ["12a", 1], ["007", 5],
        ],
    ),
    "version_parts": (
        "return the numbers of a version, filled up with zeros to three",
        [
            ["1.2.3"], ["1.2"], ["7"], ["0.0.1"], ["10.20.30"], ["1.2.3.4"], ["3.0"], ["2.11"],
        ],
    ),
    "newer_version": (
        "return the newer of two versions",
        [
            ["1.2", "1.3"], ["1.10", "1.9"], ["2.0", "1.9"], ["1.0", "1.0"], ["0.9.1", "0.9"], ["3.1", "10.0"],
            ["1.2.3", "1.2.10"], ["5.0", "4.9.9"],
        ],
    ),
    "query_table": (
        "return the table of a query like a=1&b=2, parts without = are left out",
        [
            ["a=1&b=2"], ["a=1"], [""], ["a&b=2"], ["a=1&a=3"], ["k=v=w"], ["x=&y=0"], ["p=1&q&r=3"],
        ],
    ),
    "strip_comment": (
        "return line without a comment that starts with # and without spaces at its end",
        [
            ["x = 1  # note"], ["x = 1"], ["# all"], [""], ["a#b#c"], ["  keep  "], ["text   "], ["y#"],
        ],
    ),
    "indent_level": (
        "return the indentation of line, four spaces are one level",
        [
            ["x"], ["    x"], ["        x"], ["   x"], ["      y"], [""], ["    a b    "], ["            deep"],
        ],
    ),
    "file_extension": (
        "return the lower-case extension of the file in path, empty without one",
        [
            ["a.txt"], ["a.tar.gz"], ["dir.d/file"], ["dir/photo.JPG"], [".hidden"], ["noext"], ["x/y/z.py"],
            ["end."], ["/a.b/.c"],
        ],
    ),
    "parse_range": (
        "return the numbers of a range like 3-6, or the one number",
        [
            ["3-6"], ["1-1"], ["5"], ["0-2"], ["9-12"], ["7-8"], ["2-1"], ["x"],
        ],
    ),
    "unquote": (
        "return text without a pair of equal quotes around it",
        [
            ["'a'"], ["\"b c\""], ["plain"], ["'"], [""], ["'a\""], ["''"], ["xax"], ["\"q"], ["'end'x"],
        ],
    ),
    "csv_cells": (
        "return the cells of a line with commas, without spaces around them",
        [
            ["a,b"], ["a, b , c"], [""], ["   "], ["one"], ["x,,y"], [" 1 ,2"], ["p q, r"],
        ],
    ),
    "binary_value": (
        "return the number that text is in binary",
        [
            ["0"], ["1"], ["10"], ["101"], ["1111"], [""], ["1000"], ["0110"],
        ],
    ),
    "parse_size": (
        "return the bytes of a size like 512 or 4k (1 k is 1024)",
        [
            ["512"], ["4k"], ["1K"], ["0"], ["0k"], ["10"], ["12k"], ["k"], ["7"],
        ],
    ),
    "line_number": (
        "return the number of the line in which position lies, the first is 1",
        [
            ["a\nb\nc", 0], ["a\nb\nc", 2], ["a\nb\nc", 4], ["abc", 2], ["", 0], ["a\n\nb", 3], ["x\ny", 1],
            ["one\ntwo\n", 7],
        ],
    ),
}  # fmt: skip
