"""Small functions over codes: simple ciphers, check digits, bars and bit strings."""


def isbn_check(digits):
    total = 0
    for i in range(len(digits)):
        total += (10 - i) * int(digits[i])
    rest = -total % 11
    return "X" if rest == 10 else str(rest)


def bar_text(widths):
    out = ""
    for i in range(len(widths)):
        mark = "#" if i % 2 == 0 else "."
        out += mark * widths[i]
    return out


def mirror_letters(text):
    letters = "abcdefghijklmnopqrstuvwxyz"
    out = ""
    for ch in text:
        out += letters[25 - letters.index(ch)] if ch in letters else ch
    return out


def with_parity(bits):
    ones = bits.count("1")
    return bits + str(ones % 2)


def stuff_bits(bits, limit):
    out = ""
    run = 0
    for bit in bits:
        out += bit
        run = run + 1 if bit == "1" else 0
        if run == limit:
            out += "0"
            run = 0
    return out


def vote_bits(bits):
    out = ""
    for i in range(0, len(bits), 3):
        part = bits[i : i + 3]
        out += "1" if part.count("1") >= 2 else "0"
    return out


def shift_digits(digits, key):
    out = ""
    for i in range(len(digits)):
        step = int(key[i % len(key)])
        out += str((int(digits[i]) + step) % 10)
    return out


def bits_apart(left, right):
    if len(left) != len(right):
        return -1
    return sum(left[i] != right[i] for i in range(len(left)))


CASES = {
    "isbn_check": (
        "return the check that makes the sum divisible by 11; digits weigh 10, 9, 8 and so on; ten is X",
        [
            ["1"], ["0"], ["5"], ["12"], ["030"], ["01"], ["0001"], ["81"], ["030640615"], ["123456789"],
        ],
    ),
    "bar_text": (
        "return bars of # and gaps of . in turn, each as wide as widths says, a bar first",
        [
            [[1, 1, 1]], [[2, 1, 3]], [[]], [[4]], [[0, 2]], [[1, 3, 2, 2]], [[3, 0, 1]], [[1, 2, 3, 4, 5]],
        ],
    ),
    "mirror_letters": (
        "return text with a exchanged for z, b for y and so on; other characters stay",
        [
            ["abc"], ["z"], [""], ["mn"], ["a-z"], ["Hi you"], ["cab 7"], ["QED"], ["wxy"],
        ],
    ),
    "with_parity": (
        "return bits and one more bit, so that the number of ones is even",
        [
            ["1"], ["0"], [""], ["11"], ["101"], ["0111"], ["1000"], ["110110"], ["11111"],
        ],
    ),
    "stuff_bits": (
        "return bits with a 0 added after every limit ones in a row",
        [
            ["111", 2], ["1111", 2], ["1101", 2], ["", 3], ["0000", 1], ["10111011", 3], ["111111", 3], ["101", 1],
            ["0110110", 2], ["1011", 5],
        ],
    ),
    "vote_bits": (
        "return one bit for each piece of three bits: 1 if at least two of them are 1",
        [
            ["111000"], ["110"], ["100"], [""], ["101011001"], ["000010"], ["1"], ["0101"], ["111011110000"],
            ["00111"],
        ],
    ),
    "shift_digits": (
        "return each digit plus the key digit at its place, without the carry; the key repeats",
        [
            ["123", "1"], ["999", "1"], ["5", "5"], ["", "7"], ["1234", "12"], ["8080", "305"], ["47", "093"],
            ["00000", "246"], ["7", "2"],
        ],
    ),
    "bits_apart": (
        "return at how many places left and right differ, or -1 if their lengths do",
        [
            ["101", "100"], ["101", "101"], ["", ""], ["1", ""], ["0110", "1001"], ["10", "100"], ["0", "1"],
            ["11100", "01101"], ["00", "11"],
        ],
    ),
}  # fmt: skip
