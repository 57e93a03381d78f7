"""Small functions over whole numbers."""


def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


def sign_of(x):
    if x > 0:
        return 1
    if x < 0:
        return -1
    return 0


def digit_sum(n):
    n = abs(n)
    total = 0
    while n > 0:
        total += n % 10
        n = n // 10
    return total


def reverse_digits(n):
    out = 0
    while n > 0:
        out = out * 10 + n % 10
        n = n // 10
    return out


def count_divisors(n):
    count = 0
    for d in range(1, n + 1):
        if n % d == 0:
            count += 1
    return count


def root_floor(n):
    r = 0
    while (r + 1) * (r + 1) <= n:
        r += 1
    return r


def halving_steps(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else n - 1
        steps += 1
    return steps


def common_multiple(a, b):
    m = a
    while m % b != 0:
        m += a
    return m


def count_bits(n):
    count = 0
    while n > 0:
        count += n % 2
        n = n // 2
    return count


def round_up_to(n, step):
    rest = n % step
    if rest == 0:
        return n
    return n + step - rest


def is_triangular(n):
    total = 0
    k = 1
    while total < n:
        total += k
        k += 1
    return total == n


def wrap_into(n, low, high):
    size = high - low + 1
    return low + (n - low) % size


def digital_root(n):
    while n >= 10:
        n = n // 10 + n % 10
    return n


def range_distance(x, low, high):
    if x < low:
        return low - x
    if x > high:
        return x - high
    return 0


CASES = {
    "clamp": (
        "return x, but at least low and at most high",
        [
            [5, 1, 9], [0, 1, 9], [12, 1, 9], [1, 1, 9], [9, 1, 9], [-3, -2, 2], [3, -2, 2], [4, 4, 4], [7, 2, 6],
        ],
    ),
    "sign_of": (
        "return 1 for a positive x, -1 for a negative x and 0 for zero",
        [
            [5], [-5], [0], [1], [-1], [100], [-99], [2], [-2],
        ],
    ),
    "digit_sum": (
        "return the sum of the decimal digits of n, without its sign",
        [
            [123], [0], [9], [-45], [1000], [99], [10], [-7], [505],
        ],
    ),
    "reverse_digits": (
        "return n with its decimal digits in reverse order",
        [
            [123], [0], [7], [120], [1002], [99], [10], [4567], [31],
        ],
    ),
    "count_divisors": (
        "return how many whole numbers from 1 to n divide n",
        [
            [1], [2], [6], [7], [12], [16], [9], [0], [10],
        ],
    ),
    "root_floor": (
        "return the largest whole number whose square is at most n",
        [
            [0], [1], [3], [4], [8], [9], [24], [25], [26], [2],
        ],
    ),
    "halving_steps": (
        "return the steps to get from n to 1: halve an even n, subtract 1 from an odd n",
        [
            [1], [2], [3], [8], [7], [10], [0], [15], [16],
        ],
    ),
    "common_multiple": (
        "return the smallest multiple of a that b divides",
        [
            [4, 6], [3, 5], [6, 3], [3, 6], [7, 7], [1, 9], [8, 12], [10, 4],
        ],
    ),
    "count_bits": (
        "return how many ones n has in binary",
        [
            [0], [1], [2], [3], [7], [8], [10], [255], [6],
        ],
    ),
    "round_up_to": (
        "return the smallest multiple of step that is at least n",
        [
            [7, 5], [10, 5], [0, 5], [1, 5], [11, 10], [9, 3], [8, 3], [1, 1], [14, 4],
        ],
    ),
    "is_triangular": (
        "return True if n is a sum 1 + 2 + ... + k, also for 0",
        [
            [0], [1], [2], [3], [4], [6], [10], [9], [15], [14],
        ],
    ),
    "wrap_into": (
        "return n moved into low..high by whole rounds",
        [
            [5, 0, 3], [-1, 0, 3], [3, 0, 3], [4, 0, 3], [10, 1, 7], [7, 1, 7], [8, 1, 7], [0, 1, 7], [2, 2, 2],
        ],
    ),
    "digital_root": (
        "return the digit that is left when all but the last digit are added to the last until one digit is left",
        [
            [0], [9], [10], [38], [99], [123], [18], [19], [55],
        ],
    ),
    "range_distance": (
        "return how far x is outside low..high, 0 if inside",
        [
            [5, 1, 9], [0, 1, 9], [12, 1, 9], [1, 1, 9], [9, 1, 9], [-4, 2, 3], [10, 2, 3], [3, 2, 3], [20, 5, 8],
        ],
    ),
}  # fmt: skip
