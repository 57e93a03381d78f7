"""Small functions over one string."""


def trim_to(text, width):
    if len(text) <= width:
        return text
    return text[: width - 1] + "~"


def pad_both(text, width, mark):
    gap = max(width - len(text), 0)
    left = gap // 2
    return mark * left + text + mark * (gap - left)


def count_letter(text, letter):
    total = 0
    for ch in text:
        if ch == letter:
            total += 1
    return total


def first_repeat(text):
    seen = ""
    for ch in text:
        if ch in seen:
            return ch
        seen += ch
    return ""


def swap_ends(text):
    if len(text) < 2:
        return text
    return text[-1] + text[1:-1] + text[0]


def strip_suffix(text, suffix):
    if suffix and text.endswith(suffix):
        return text[: -len(suffix)]
    return text


def common_start(left, right):
    n = 0
    while n < len(left) and n < len(right) and left[n] == right[n]:
        n += 1
    return left[:n]


def mask_tail(text, keep):
    hidden = len(text) - keep
    if hidden <= 0:
        return text
    return "*" * hidden + text[hidden:]


def initials(name):
    out = ""
    for word in name.split():
        out += word[0].upper()
    return out


def longest_run(text):
    best = 0
    run = 0
    for i in range(len(text)):
        run = run + 1 if i > 0 and text[i] == text[i - 1] else 1
        best = max(best, run)
    return best


def rotate_text(text, step):
    if not text:
        return text
    k = step % len(text)
    return text[k:] + text[:k]


def every_nth(text, n):
    out = ""
    for i in range(len(text)):
        if i % n == n - 1:
            out += text[i]
    return out


def ends_match(text):
    if len(text) < 2:
        return False
    return text[0] == text[-1]


def between_marks(text, start, end):
    a = text.find(start)
    b = text.find(end, a + 1)
    if a < 0 or b < 0:
        return ""
    return text[a + 1 : b]


CASES = {
    "trim_to": (
        "return text unchanged if it fits in width, else cut it to width characters ending in ~",
        [
            ["apple", 5], ["apple", 4], ["apple", 6], ["banana", 3], ["", 2], ["ab", 1], ["pear tree", 6], ["x", 1],
            ["kiwi", 2],
        ],
    ),
    "pad_both": (
        "return text centred in width with mark on both sides, the odd one on the right",
        [
            ["ab", 6, "-"], ["ab", 5, "-"], ["abc", 3, "*"], ["abcd", 2, "*"], ["", 3, "."], ["x", 2, "+"],
            ["hey", 8, "="], ["on", 9, "_"],
        ],
    ),
    "count_letter": (
        "return how many times letter occurs in text",
        [
            ["banana", "a"], ["banana", "n"], ["banana", "x"], ["", "a"], ["Mississippi", "s"], ["aaa", "a"],
            ["A cat", "a"], ["zoo", "o"],
        ],
    ),
    "first_repeat": (
        "return the first character that was already seen, or an empty string",
        [
            ["hello"], ["abca"], ["abc"], [""], ["aa"], ["xyzzy"], ["abba"], ["noon"], ["q"],
        ],
    ),
    "swap_ends": (
        "return text with its first and last characters exchanged",
        [
            ["abcd"], ["ab"], ["a"], [""], ["xyz"], ["planet"], ["12345"], ["no"], ["level!"],
        ],
    ),
    "strip_suffix": (
        "return text without suffix if it ends with it, else text",
        [
            ["report.txt", ".txt"], ["report.txt", ".csv"], ["walking", "ing"], ["abc", ""], ["abab", "ab"],
            ["ab", "ab"], ["testest", "est"], ["x", "xy"], ["txt.txt.a", ".txt"],
        ],
    ),
    "common_start": (
        "return the longest beginning that left and right share",
        [
            ["flower", "flow"], ["flow", "flower"], ["abc", "abd"], ["abc", "xbc"], ["", "a"], ["same", "same"],
            ["ab", "ba"], ["interval", "internet"], ["aXc", "aYc"],
        ],
    ),
    "mask_tail": (
        "return text with all but the last keep characters replaced by *",
        [
            ["12345678", 4], ["abc", 3], ["abc", 2], ["abc", 5], ["", 0], ["secret", 1], ["secret", 6], ["9876", 3],
            ["xy", 0],
        ],
    ),
    "initials": (
        "return the upper-case first letters of the words of name",
        [
            ["ada lovelace"], ["Alan Mathison Turing"], ["grace"], [""], ["  jean   luc "], ["a b c d"], ["Mary ann"],
            ["x Y"],
        ],
    ),
    "longest_run": (
        "return the length of the longest run of one repeated character",
        [
            ["aabbb"], ["abc"], [""], ["a"], ["aaaa"], ["abbbaa"], ["xxyyyyx"], ["aabaab"], ["zzzabc"],
        ],
    ),
    "rotate_text": (
        "return text with its first step characters moved to the end",
        [
            ["abcdef", 2], ["abc", 0], ["abc", 3], ["abc", 4], ["", 5], ["x", 7], ["hello", 1], ["hello", 4],
            ["ab", 3],
        ],
    ),
    "every_nth": (
        "return every n-th character of text, starting with the n-th",
        [
            ["abcdef", 2], ["abcdef", 3], ["abcdef", 1], ["", 2], ["ab", 3], ["abcdefgh", 4], ["xyz", 2],
            ["letters", 5],
        ],
    ),
    "ends_match": (
        "return True if text has at least two characters and the first equals the last",
        [
            ["abca"], ["abc"], ["aa"], ["a"], [""], ["ab"], ["noon"], ["cbba"], ["xyx"], ["baab"],
        ],
    ),
    "between_marks": (
        "return what stands between the mark start and the next mark end, or an empty string",
        [
            ["f(x)", "(", ")"], ["a[12]b", "[", "]"], ["plain", "(", ")"], ["(open", "(", ")"], ["|mid|", "|", "|"],
            ["x)(y)", "(", ")"], ["<>", "<", ">"], ["close)", "(", ")"], ["{key}: {v}", "{", "}"],
        ],
    ),
}  # fmt: skip
