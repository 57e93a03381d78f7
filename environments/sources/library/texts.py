"""Small functions over words, lines and sentences."""


def snake_to_camel(name):
    parts = name.split("_")
    out = parts[0]
    for part in parts[1:]:
        out += part.capitalize()
    return out


def camel_to_snake(name):
    out = ""
    for ch in name:
        if ch.isupper():
            out += "_"
        out += ch.lower()
    return out


def longest_word(text):
    best = ""
    for word in text.split():
        if len(word) > len(best):
            best = word
    return best


def join_names(names):
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]


def plural(n, word):
    if n != 1:
        word = word + "s"
    return str(n) + " " + word


def reverse_words(text):
    words = text.split()
    return " ".join(words[::-1])


def first_words(text, n):
    words = text.split()
    if len(words) <= n:
        return text
    return " ".join(words[:n]) + "..."


def ordinal(n):
    if n % 100 in [11, 12, 13]:
        return str(n) + "th"
    endings = {1: "st", 2: "nd", 3: "rd"}
    return str(n) + endings.get(n % 10, "th")


def pack_runs(text):
    runs = []
    for ch in text:
        if runs and runs[-1][0] == ch:
            runs[-1][1] += 1
        else:
            runs.append([ch, 1])
    return runs


def unpack_runs(runs):
    out = ""
    for ch, n in runs:
        out += ch * n
    return out


def quote_lines(text):
    out = []
    for line in text.split("\n"):
        out.append("> " + line if line else ">")
    return out


def wrap_words(words, width):
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = (lines[-1] + " " + word).strip()
    return lines


def is_acronym(short, phrase):
    words = phrase.split()
    if len(words) != len(short):
        return False
    return all(words[i][0].lower() == short[i].lower() for i in range(len(words)))


def title_words(text, small):
    out = []
    for word in text.split():
        out.append(word if word in small else word.capitalize())
    return " ".join(out)


CASES = {
    "snake_to_camel": (
        "return a name like max_line_width as maxLineWidth",
        [
            ["max_line_width"], ["name"], ["a_b"], [""], ["get_id"], ["x_1_y"], ["is_open_now"], ["read_ONE"],
        ],
    ),
    "camel_to_snake": (
        "return a name like maxLineWidth as max_line_width",
        [
            ["maxLineWidth"], ["name"], ["aB"], [""], ["getId"], ["readABC"], ["isOpen2"], ["x"],
        ],
    ),
    "longest_word": (
        "return the first of the longest words of text",
        [
            ["a bb ccc"], ["ccc bb a"], ["aa bb"], [""], ["one"], ["the quick brown fox"], ["it is so"],
            ["to see tea"],
        ],
    ),
    "join_names": (
        "return names joined like Ann, Bob and Cy",
        [
            [["Ann", "Bob", "Cy"]], [["Ann", "Bob"]], [["Ann"]], [[]], [["a", "b", "c", "d"]], [["x", "y"]],
            [["one", "two", "three"]], [["Zoe"]],
        ],
    ),
    "plural": (
        "return n and word, with an s added to word unless n is 1",
        [
            [1, "cat"], [2, "cat"], [0, "dog"], [10, "pen"], [1, "egg"], [-1, "day"], [21, "car"], [3, "hat"],
        ],
    ),
    "reverse_words": (
        "return the words of text in reverse order",
        [
            ["a b c"], ["one"], [""], ["hello world"], ["x  y"], ["to be or"], ["1 2 3 4"], ["up down up"],
        ],
    ),
    "first_words": (
        "return the first n words of text and ..., or text if it has no more",
        [
            ["a b c", 2], ["a b c", 3], ["a b c", 1], ["", 2], ["one two", 5], ["the old red barn", 3], ["x y", 1],
            ["to be or not", 2],
        ],
    ),
    "ordinal": (
        "return n as 1st, 2nd, 3rd, 4th, 11th and so on",
        [
            [1], [2], [3], [4], [11], [12], [13], [21], [112], [10], [103], [0],
        ],
    ),
    "pack_runs": (
        "return the runs of equal characters as [character, length]",
        [
            ["aab"], [""], ["a"], ["abc"], ["aaa"], ["aabaa"], ["xxyy"], ["zzzzq"],
        ],
    ),
    "unpack_runs": (
        "return the text whose runs are given as [character, length]",
        [
            [[["a", 2], ["b", 1]]], [[]], [[["x", 0]]], [[["q", 5]]], [[["a", 1], ["b", 1], ["a", 1]]],
            [[["z", 3], ["y", 2]]], [[["ab", 2]]], [[["-", 4], [">", 1]]],
        ],
    ),
    "quote_lines": (
        "return the lines of text, each after > and a space, an empty line as >",
        [
            ["a"], ["a\nb"], [""], ["a\n\nb"], ["one\n"], ["x y\nz"], ["\n"], ["hi"],
        ],
    ),
    "wrap_words": (
        "return words put on lines of at most width characters",
        [
            [["a", "b", "c"], 3], [["a", "b"], 1], [[], 5], [["word"], 2], [["aa", "bb", "cc"], 5], [["aa", "bb"], 4],
            [["one", "two", "six"], 7], [["x", "yy", "zzz", "w"], 4], [["aaa", "bbb"], 6],
        ],
    ),
    "is_acronym": (
        "return True if short holds the first letters of the words of phrase, in any case",
        [
            ["abc", "Alpha beta Car"], ["ABC", "alpha beta car"], ["ab", "alpha beta car"], ["abd", "alpha beta car"],
            ["", ""], ["x", "xray"], ["xb", "alpha beta"], ["nasa", "national air space agency"],
            ["ba", "alpha beta"],
        ],
    ),
    "title_words": (
        "return text with each word capitalised but those in small",
        [
            ["the old man", ["the"]], ["lord of the rings", ["of", "the"]], ["", ["a"]], ["one two", []],
            ["a a b", ["a"]], ["x", ["x"]], ["war and peace", ["and"]], ["up in the air", ["in", "the"]],
        ],
    ),
}  # fmt: skip
