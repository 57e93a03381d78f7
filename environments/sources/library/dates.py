"""Small functions over years, months, days and times of day; none asks a clock."""


def is_leap(year):
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


def days_in_month(month, leap):
    if month == 2:
        return 29 if leap else 28
    if month in [4, 6, 9, 11]:
        return 30
    return 31


def minutes_of(text):
    parts = text.split(":")
    return int(parts[0]) * 60 + int(parts[1])


def clock_text(minutes):
    hour = minutes // 60 % 24
    rest = minutes % 60
    return str(hour).zfill(2) + ":" + str(rest).zfill(2)


def weekday_after(day, n):
    names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    i = names.index(day)
    return names[(i + n) % 7]


def twelve_hour(hour):
    mark = "am" if hour < 12 else "pm"
    hour = hour % 12
    if hour == 0:
        hour = 12
    return str(hour) + mark


def day_of_year(month, day):
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return sum(lengths[: month - 1]) + day


def shared_minutes(start_a, end_a, start_b, end_b):
    start = max(start_a, start_b)
    end = min(end_a, end_b)
    return max(end - start, 0)


def quarter_of(month):
    if month < 1 or month > 12:
        raise ValueError("no such month")
    return (month - 1) // 3 + 1


def century_of(year):
    whole = year // 100
    if year % 100 == 0:
        return whole
    return whole + 1


def is_weekend(day, shift):
    day = (day + shift) % 7
    return day >= 5


def add_months(year, month, n):
    total = year * 12 + month - 1 + n
    return [total // 12, total % 12 + 1]


def seconds_text(seconds):
    minutes = seconds // 60
    rest = seconds % 60
    if minutes == 0:
        return str(rest) + "s"
    return str(minutes) + "m" + str(rest) + "s"


def age_on(birth, today):
    age = today[0] - birth[0]
    if today[1] < birth[1]:
        age -= 1
    return age


CASES = {
    "is_leap": (
        "return True if year is a leap year",
        [
            [2000], [1900], [2024], [2023], [2100], [1600], [4], [100], [2022], [400],
        ],
    ),
    "days_in_month": (
        "return the number of days of month, leap tells if it is a leap year",
        [
            [2, True], [2, False], [4, False], [6, True], [9, False], [11, True], [1, False], [12, True], [3, True],
            [7, False],
        ],
    ),
    "minutes_of": (
        "return the minutes since midnight of a time like 07:30",
        [
            ["07:30"], ["00:00"], ["00:05"], ["01:00"], ["23:59"], ["12:10"], ["10:01"], ["02:02"],
        ],
    ),
    "clock_text": (
        "return minutes since midnight as a time like 07:30",
        [
            [450], [0], [5], [60], [1439], [1440], [1505], [61], [600],
        ],
    ),
    "weekday_after": (
        "return the weekday n days after day",
        [
            ["mon", 1], ["sun", 1], ["mon", 0], ["fri", 3], ["tue", 7], ["sat", 10], ["wed", -1], ["thu", 5],
        ],
    ),
    "twelve_hour": (
        "return an hour from 0 to 23 as 12am, 1am, ... 12pm, 1pm, ...",
        [
            [0], [1], [11], [12], [13], [23], [6], [18], [10],
        ],
    ),
    "day_of_year": (
        "return which day of a normal year the day of month is",
        [
            [1, 1], [1, 31], [2, 1], [3, 1], [12, 31], [6, 15], [7, 4], [11, 30],
        ],
    ),
    "shared_minutes": (
        "return how many minutes two time spans share",
        [
            [0, 10, 5, 15], [0, 10, 10, 20], [0, 5, 6, 9], [2, 9, 3, 4], [3, 4, 2, 9], [5, 15, 0, 10], [0, 10, 0, 10],
            [7, 8, 1, 2],
        ],
    ),
    "quarter_of": (
        "return the quarter of the year of month, ValueError for a wrong month",
        [
            [1], [3], [4], [6], [7], [10], [12], [0], [13],
        ],
    ),
    "century_of": (
        "return the century in which year lies, 1901 to 2000 is 20",
        [
            [2000], [2001], [1999], [100], [101], [1], [1900], [1500], [1789],
        ],
    ),
    "is_weekend": (
        "return True if shift days after day is a Saturday (5) or Sunday (6), Monday is 0",
        [
            [0, 0], [4, 1], [5, 0], [6, 0], [6, 1], [4, 0], [3, 3], [1, 7], [5, 7], [2, 2],
        ],
    ),
    "add_months": (
        "return [year, month] n months after the given month",
        [
            [2020, 1, 1], [2020, 12, 1], [2020, 11, 1], [2020, 6, 6], [2020, 1, -1], [2021, 5, 24], [1999, 12, 13],
            [2000, 3, 0],
        ],
    ),
    "seconds_text": (
        "return seconds as 5s or 2m5s",
        [
            [5], [0], [59], [60], [61], [125], [600], [3599],
        ],
    ),
    "age_on": (
        "return the age in whole years, both are [year, month]",
        [
            [[2000, 5], [2020, 6]], [[2000, 5], [2020, 5]], [[2000, 5], [2020, 4]], [[1999, 12], [2000, 1]],
            [[1990, 1], [1990, 12]], [[1980, 7], [2001, 2]], [[2001, 3], [2011, 9]], [[1975, 6], [2015, 6]],
        ],
    ),
}  # fmt: skip
