"""Questions whose answer a tool should compute: `calc.*` in words, `lookup.*` over a table in data.csv.

An origin is a template with a theme, e.g. `calc.chain:eggs`; a family is what the question is asked of, `lookup.words` or
`lookup.table`. Tasks of the split `boundary` sit on an edge: nothing is
left, no row matches, a value equals the limit. `expression_of` is the solver: what a demonstration types into a
calculator. Not covered: fractions, units, and tables too long for a prompt.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Sequence

from environments.sources.splits import order
from schemas.task import Split, Task

SKILL = "lookup"
FILE = "answer.txt"
DATA = "data.csv"

# family -> (text, expression, a plausible wrong one); the numbers stand in the text as a, b, c from left to right
WORDS = {
    "calc.sum": ("There are {a} {things} in the shop and {b} more arrive. How many {things} are there?", "a+b", "a-b"),
    "calc.difference": ("Of {a} {things}, {b} are sold. How many {things} are left?", "a-b", "a+b"),
    "calc.product": ("Each of {a} boxes holds {b} {things}. How many {things} are in the boxes?", "a*b", "a+b"),
    "calc.share": ("{a} {things} are shared equally by {b} people. How many {things} does each get?", "a/b", "a-b"),
    "calc.chain": (
        "{a} boxes hold {b} {things} each, {c} more lie outside. How many {things} in all?",
        "a*b+c",
        "a+b+c",
    ),
    "calc.less": (
        "{a} bags with {b} {things} each were bought, {c} got lost. How many {things} remain?",
        "a*b-c",
        "a*b+c",
    ),
}
THINGS = ("pens", "apples", "coins", "stamps", "books", "bricks", "eggs", "tickets", "plates", "cards")
SEALED_THINGS = ("shells", "ropes", "maps")  # sealed origins only ever measure, see splits.py
# reserved origins are in no data set: bench/planted.py draws its questions from them
RESERVED_THINGS = ("candles", "drums", "lemons", "buttons", "bells", "kites", "masks", "seeds")
BARE = {
    "plus": ("a + b", "a-b"),
    "minus": ("a - b", "a+b"),
    "times": ("a * b", "a+b"),
    "times_plus": ("a * b + c", "a*(b+c)"),
    "times_minus": ("a * b - c", "a*b+c"),
    "plus_times": ("a + b * c", "(a+b)*c"),
    "plus_plus": ("a + b + c", "a+b-c"),
    "plus_minus": ("a + b - c", "a+b+c"),
    "sum_times": ("(a + b) * c", "a+b*c"),
    "rest_times": ("(a - b) * c", "a-b*c"),
    "times_sum": ("a * (b + c)", "a*b+c"),
    "times_rest": ("a * (b - c)", "a*b-c"),
}
SEALED_BARE = ("times_sum", "times_rest")

QUESTIONS = {
    "lookup.sum": "What is the sum of {value} over the rows with {key} above {limit}?",
    "lookup.max": "What is the largest {value} among the rows with {key} above {limit}?",
    "lookup.count": "How many rows have {key} above {limit}?",
    "lookup.difference": "By how much is the largest {value} above the smallest {value}?",
}
TABLES = {
    "stock": ("item", "price", "stock", ("nail", "saw", "rope", "drill", "paint", "lamp")),
    "towns": ("town", "people", "shops", ("Ash", "Bree", "Cole", "Dorn", "Elm", "Fenn")),
    "team": ("player", "goals", "games", ("Ann", "Bob", "Cy", "Dee", "Eli", "Flo")),
    "parcels": ("parcel", "weight", "cost", ("p1", "p2", "p3", "p4", "p5", "p6")),
    "shelves": ("shelf", "books", "loans", ("A", "B", "C", "D", "E", "F")),
    "buses": ("line", "seats", "stops", ("red", "blue", "green", "grey", "pink", "gold")),
    "rooms": ("room", "chairs", "desks", ("hall", "lab", "loft", "attic", "study", "den")),
    "trees": ("tree", "height", "fruits", ("fig", "plum", "pear", "lime", "kaki", "date")),
    "boats": ("boat", "length", "crew", ("Swan", "Gull", "Tern", "Ibis", "Crane", "Heron")),
    "farm": ("animal", "age", "milk", ("cow", "goat", "ewe", "yak", "mare", "llama")),
    "hikes": ("trail", "hours", "climb", ("ridge", "gorge", "lake", "pass", "mill", "moor")),
    "films": ("film", "minutes", "seats", ("Orbit", "Harbor", "Ember", "Frost", "Lantern", "Tides")),
    "jars": ("jar", "grams", "spoons", ("salt", "mint", "sage", "dill", "anise", "cumin")),
    "bridges": ("bridge", "span", "lanes", ("Arch", "Quay", "Lock", "Weir", "Ferry", "Dock")),
    "caves": ("cave", "depth", "bats", ("north", "south", "east", "west", "upper", "lower")),
    "choirs": ("choir", "singers", "songs", ("Alto", "Bass", "Tenor", "Treble", "Chorus", "Canto")),
    "hives": ("hive", "frames", "honey", ("h1", "h2", "h3", "h4", "h5", "h6")),
    "quilts": ("quilt", "patches", "colors", ("star", "log", "fan", "wave", "leaf", "ring")),
    "rockets": ("rocket", "stages", "thrust", ("Kilo", "Lima", "Mike", "Papa", "Romeo", "Zulu")),
}
SEALED_TABLES = ("hikes", "films", "jars")
RESERVED_TABLES = ("bridges", "caves", "choirs", "hives", "quilts", "rockets")


def origins() -> list[str]:
    """Every origin of the data set, sorted."""
    bare = [f"calc.bare:{name}" for name in BARE]
    tables = [theme for theme in TABLES if theme not in RESERVED_TABLES]
    return sorted([*_asked_of(THINGS + SEALED_THINGS, tables), *bare])


def reserved_origins() -> list[str]:
    """Every origin that is in no data set, sorted."""
    return sorted(_asked_of(RESERVED_THINGS, RESERVED_TABLES))


def _asked_of(things: Sequence[str], tables: Sequence[str]) -> list[str]:
    return [
        f"{family}:{theme}"
        for forms, themes in ((WORDS, things), (QUESTIONS, tables))
        for family in forms
        for theme in themes
    ]


def sealed_origins() -> frozenset[str]:
    sealed = {*SEALED_THINGS, *SEALED_BARE, *SEALED_TABLES}
    return frozenset(origin for origin in origins() if origin.partition(":")[2] in sealed)


def lookup_tasks(
    seed: int, split_of: Callable[[str], Split], per_origin: int, names: Sequence[str] | None = None
) -> list[Task]:
    """`per_origin` questions of each origin with different texts or tables, sorted by id. `names` keeps it to some origins,
    reserved ones too."""
    tasks = []
    for origin in origins() if names is None else names:
        split = split_of(origin)
        seen: set[str] = set()
        rng = random.Random(order(seed, origin))  # noqa: S311 - questions, not secrets
        while len(seen) < per_origin:
            task = _make(origin, len(seen), split, rng)
            content = task.statement + task.files.get(DATA, "")
            if content not in seen:
                seen.add(content)
                tasks.append(task)
    return sorted(tasks, key=lambda task: task.id)


def expression_of(task: Task) -> str:
    """The expression whose value is the answer, read from statement and table alone; ValueError for another skill."""
    if task.skill != SKILL:
        raise ValueError(f"{task.id}: no expression, its skill is {task.skill}, not {SKILL}")
    family, theme = task.origin.split(":")
    if DATA in task.files:
        return _table_expression(family, theme, task.files[DATA], task.statement)
    form = BARE[theme][0].replace(" ", "") if family == "calc.bare" else WORDS[family][1]
    return _filled(form, [int(n) for n in re.findall(r"\d+", task.statement)])


def answer_of(task: Task) -> str | None:
    """The answer that the question's own words ask for, whatever the task says of itself; None where no form of ours fits."""
    forms = QUESTIONS if DATA in task.files else {family: form for family, (form, *_) in WORDS.items()}
    family = next((name for name, form in forms.items() if _asks(form, task.statement)), None)
    if family is None:
        return None
    origin = f"{family}:{task.origin.partition(':')[2]}"
    try:
        return str(_value(expression_of(task.model_copy(update={"origin": origin, "skill": SKILL}))))
    except (ValueError, KeyError, IndexError, SyntaxError, ZeroDivisionError, AssertionError, AttributeError):
        return None  # a table or numbers of another source


def _asks(form: str, statement: str) -> bool:
    pattern = re.sub(r"\\\{\w+\\\}", r"[\\w ]+", re.escape(form))
    return re.fullmatch(pattern, statement.strip()) is not None


def _make(origin: str, number: int, split: Split, rng: random.Random) -> Task:
    family, theme = origin.split(":")
    edge = split is Split.BOUNDARY
    files: dict[str, str] = {}
    if family in QUESTIONS:
        files[DATA], statement = _table(family, theme, edge, rng)
    else:
        statement = _words(family, theme, edge, rng)
    task = Task(
        id=f"{SKILL}/{family}_{theme}/{number}".replace(".", "_"),
        kind="answer",
        family=f"{SKILL}.{'table' if family in QUESTIONS else 'words'}",
        skill=SKILL,
        origin=origin,
        split=split,
        statement=statement,
        files=files,
        editable=[FILE],
        answer="0",
        match="number",
        gold={},
        wrong={},
        made_by=f"ask:{family}",
    )
    answer = _value(expression_of(task))
    wrong = _wrong(task, answer)
    gold = {"answer": str(answer), "gold": {FILE: f"{answer}\n"}, "wrong": {FILE: f"{wrong}\n"}}
    return task.model_copy(update=gold)


# ---- questions in words


def _words(family: str, theme: str, edge: bool, rng: random.Random) -> str:
    a, b, c = rng.randint(12, 98), rng.randint(12, 98), rng.randint(11, 79)
    if family == "calc.difference":
        b = a if edge else rng.randint(2, a - 2)  # edge: nothing is left
    if family == "calc.share":
        b = rng.randint(3, 19)
        a = b * (1 if edge else rng.randint(4, 39))  # edge: one for each
    if family == "calc.less":
        c = a * b if edge else min(c, a * b - 1)  # edge: nothing remains
    if family == "calc.bare":
        return f"What is {_filled(BARE[theme][0], [a, 0 if edge else b, c])}?"
    return WORDS[family][0].format(
        a=a, b=0 if edge and family in ("calc.sum", "calc.product") else b, c=c, things=theme
    )


def _filled(form: str, numbers: list[int]) -> str:
    return re.sub(r"[abc]", lambda match: str(numbers["abc".index(match.group())]), form)


# ---- questions about a table


def _table(family: str, theme: str, edge: bool, rng: random.Random) -> tuple[str, str]:
    """(the CSV text, the question). A limit is between the smallest key and the largest, on an edge equal to one."""
    name, value, key, names = TABLES[theme]
    labels = rng.sample(names, rng.randint(4, 6))
    rows = [(label, rng.randint(11, 98), rng.randint(11, 98)) for label in labels]
    keys = sorted(row[2] for row in rows)
    limit = rng.randint(keys[0] + 1, max(keys[-1] - 1, keys[0] + 1))
    if edge:  # the largest key itself: for sum and count no row is above it
        limit = keys[-2] if family == "lookup.max" else keys[-1]
    if keys[-1] <= limit and family == "lookup.max":
        rows[0] = (rows[0][0], rows[0][1], limit + 1)
    if edge and family == "lookup.difference":
        rows = [(label, rows[0][1], k) for label, _, k in rows]
    text = "\n".join([f"{name},{value},{key}", *(f"{label},{v},{k}" for label, v, k in rows)]) + "\n"
    return text, QUESTIONS[family].format(value=value, key=key, limit=limit)


def _table_expression(family: str, theme: str, text: str, statement: str) -> str:
    rows = [line.split(",") for line in text.splitlines()[1:]]
    if family == "lookup.difference":
        values = [int(row[1]) for row in rows]
        return f"{max(values)}-{min(values)}"
    limit = int(re.findall(r"\d+", statement)[-1])
    values = [int(row[1]) for row in rows if int(row[2]) > limit]
    if family == "lookup.max":
        return f"max({', '.join(map(str, values))})" if len(values) > 1 else str(values[0])
    if family == "lookup.count":
        return "+".join(["1"] * len(values)) or "0"
    return "+".join(map(str, values)) or "0"


# ---- answers


def _value(expression: str) -> int:
    """The value of one of our own expressions: whole numbers, + - * / without remainder, ( ) and max()."""
    return _reckoned(ast.parse(expression, mode="eval").body)


def _reckoned(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Call):
        return max(_reckoned(item) for item in node.args)
    assert isinstance(node, ast.BinOp)
    left, right = _reckoned(node.left), _reckoned(node.right)
    by_type = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
    return left // right if isinstance(node.op, ast.Div) else by_type[type(node.op)]


def _wrong(task: Task, answer: int) -> int:
    """What comes out when a condition is overlooked or an operation mixed up; another number in any case."""
    numbers = [int(n) for n in re.findall(r"\d+", task.statement)]
    family, theme = task.origin.split(":")
    if DATA in task.files:
        values = [int(line.split(",")[1]) for line in task.files[DATA].splitlines()[1:]]
        slip = {"lookup.sum": sum(values), "lookup.max": min(values), "lookup.count": len(values)}.get(
            family, max(values)
        )
    else:
        slip = _value(_filled(BARE[theme][1] if family == "calc.bare" else WORDS[family][2], numbers))
    return slip if slip != answer else answer + 1
