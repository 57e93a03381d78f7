"""Small functions about borrowed books: due days, fines, holds and shelves."""


def late_fine(days, per_day, most):
    if days <= 2:
        return 0
    return min((days - 2) * per_day, most)


def may_borrow(loans, limit, debt):
    if debt > 10:
        return False
    return len(loans) < limit


def due_again(due, today, holds):
    if holds > 0 or today > due + 7:
        return due
    return max(due, today) + 14


def next_in_line(holds, blocked):
    for reader in holds:
        if reader not in blocked:
            return reader
    return "shelf"


def shelf_mark(author, title):
    words = [word for word in title.lower().split() if word not in ("the", "a", "an")]
    first = words[0][0] if words else "x"
    return author[:3].upper() + "." + first


def overdue_titles(loans, today):
    late = [title for title in loans if loans[title] < today]
    return sorted(late, key=lambda title: (loans[title], title))


def copies_in(events):
    count = 0
    for event in events:
        if event == "back" or event == "bought":
            count += 1
        elif count > 0:
            count -= 1
    return count


def reminder_days(due, gaps):
    days = []
    for gap in gaps:
        due = due + gap
        days.append(due)
    return days[:3]


CASES = {
    "late_fine": (
        "return the fine for a book so many days late: the first 2 are free, then per_day, at most most",
        [[0, 1, 10], [2, 1, 10], [3, 1, 10], [5, 2, 10], [7, 2, 10], [8, 2, 10], [30, 3, 25], [-4, 1, 10], [4, 4, 8]],
    ),
    "may_borrow": (
        "return True if there are fewer loans than limit and the debt is at most 10",
        [
            [[], 1, 0], [[], 0, 0], [["a"], 1, 0], [["a"], 2, 10], [["a"], 2, 11], [["a", "b"], 3, 9], [[], 5, 12],
            [["a", "b", "c"], 2, 0],
        ],
    ),
    "due_again": (
        "return the new due day, 14 after the later of due and today; due itself with holds or more than 7 days late",
        [
            [20, 18, 0], [20, 18, 1], [20, 20, 0], [20, 21, 0], [20, 27, 0], [20, 28, 0], [5, 30, 2], [9, 0, 0], [0, 7, 0],
        ],
    ),
    "next_in_line": (
        "return the first reader of holds who is not blocked, or shelf",
        [
            [[], []], [["ann"], []], [["ann"], ["ann"]], [["ann", "bob"], ["ann"]], [["ann", "bob"], ["bob"]],
            [["c", "b", "a"], ["c", "b"]], [["a", "b"], ["b", "a"]], [["dee", "eli"], []],
        ],
    ),
    "shelf_mark": (
        "return three upper-case letters of author, a dot and the first letter of title without the, a, an; x without any",
        [
            ["Austen", "Emma"], ["Orwell", "The Road"], ["Li", "A Song"], ["poe", "An Owl"], ["King", "the"], ["King", ""],
            ["Woolf", "To the Sea"], ["Eco", "A The Rose"], ["Carr", "Month in Town"],
        ],
    ),
    "overdue_titles": (
        "return the titles due before today, the earliest first, equal days by title",
        [
            [{}, 5], [{"a": 5}, 5], [{"a": 4}, 5], [{"b": 1, "a": 1}, 5], [{"a": 3, "b": 2}, 5], [{"a": 6, "b": 4}, 5],
            [{"x": 9, "y": 8, "z": 7}, 10], [{"m": 0, "k": 0, "l": -1}, 1],
        ],
    ),
    "copies_in": (
        "return the copies on the shelf after events; bought and back add one, others take one if there is any",
        [
            [[]], [["bought"]], [["lent"]], [["bought", "lent"]], [["lent", "bought"]], [["bought", "bought", "lost"]],
            [["bought", "lent", "back"]], [["bought", "lent", "lent", "back"]], [["back", "bought", "lent", "back", "lost"]],
        ],
    ),
    "reminder_days": (
        "return the days of at most three reminders, each a gap after the one before, the first after due",
        [[10, []], [10, [7]], [10, [7, 7]], [10, [3, 2, 1]], [0, [1, 2, 3, 4]], [5, [0, 0]], [30, [14, 7, 7, 7]], [2, [9]]],
    ),
}  # fmt: skip
