"""Literals of a test's expectation: which ones they are, and another one of the same kind in the place of each."""

import ast
import io
import re
import tokenize

CONSTRUCTORS = {
    "approx", "Decimal", "Fraction", "datetime", "date", "time", "timedelta", "set", "frozenset", "tuple", "list",
    "dict", "OrderedDict", "Path", "PurePath", "PurePosixPath", "bytes", "bytearray", "str", "int", "float",
    "dedent", "cleandoc",
}  # fmt: skip
MAX_LEAVES, MAX_ENTRIES = 5, 60
DIGITS, LOWER, UPPER = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORD = re.compile(r"\b[a-z]{2,}\b")
QUOTED = re.compile(r"""^([rRbB]{0,2})('''|\"\"\"|'|")(.*)\2$""", re.DOTALL)


def resolved(source, node, function, calls=True):
    """An expected operand; for a name that is used once, what it is bound to; None when that is not known.

    `calls=False`: no call, which on the left of an equality may be the attempt's own function.
    """
    if isinstance(node, ast.Name):
        node = binding(source, node.id, function)
    return None if isinstance(node, ast.Call) and not calls else node


def own_leaves(node):
    if isinstance(node, ast.Constant):
        return [] if node.value is Ellipsis or isinstance(node.value, complex) else [node]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return own_leaves(node.operand)
    if isinstance(node, ast.Call):
        return leaves_of_call(node)
    if isinstance(node, ast.BinOp):
        parts = own_leaves(node.left), own_leaves(node.right)
        if isinstance(node.op, ast.Mod):
            return parts[0]
        return [*parts[0], *parts[1]] if all(parts) else []
    if isinstance(node, ast.Dict):
        parts = [part for part in (*node.keys, *node.values) if part is not None]
        return collected(node, parts) if pure(node) else []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return collected(node, node.elts) if pure(node) else []
    return []


def leaves_of_call(node):
    """Those of a constructor's first argument, of a joined table, of a text with a method called on it."""
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
        return own_leaves(node.args[0]) if function.attr == "join" and node.args else own_leaves(function.value)
    name = getattr(function, "attr", None) or getattr(function, "id", None)
    return own_leaves(node.args[0]) if name in CONSTRUCTORS and node.args else []


def collected(node, parts):
    return [leaf for part in parts for leaf in own_leaves(part)] or ([node] if not parts else [])


def pure(node):
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def used_once(name, function):
    loads = [item for item in ast.walk(function) if isinstance(item, ast.Name) and item.id == name]
    return sum(isinstance(item.ctx, ast.Load) for item in loads) == 1


def binding(source, name, function):
    """What a name is bound to: by its only assignment, by the last row of the table that a loop walks, by the module."""
    own = [item for item in ast.walk(function) if isinstance(item, ast.Name) and item.id == name]
    stores = [item for item in own if isinstance(item.ctx, ast.Store)]
    if not stores and name not in {item.arg for item in ast.walk(function) if isinstance(item, ast.arg)}:
        return source.constants.get(name)
    if len(stores) != 1 or not used_once(name, function):
        return None
    for statement in ast.walk(function):
        if isinstance(statement, ast.Assign) and statement.targets == stores:
            return statement.value
        if isinstance(statement, ast.For) and stores[0] in getattr(statement.target, "elts", []):
            names = statement.target.elts
            return cell(resolved(source, statement.iter, function), names.index(stores[0]), len(names))
    return None


def cell(table, column, width):
    """The last row's entry; None for a table that is not written out."""
    rows = getattr(table, "elts", None)
    if not isinstance(table, ast.List | ast.Tuple) or not rows or not isinstance(rows[-1], ast.Tuple | ast.List):
        return None
    return rows[-1].elts[column] if len(rows[-1].elts) == width else None


def scrambled_entries(source, table, rng):
    """Edits that change every entry of a table, since it is not known which one is looked up; [] when one stays."""
    entries = table.values if isinstance(table, ast.Dict) else getattr(table, "elts", [])
    edits = [scrambled_all(source, entry, rng) for entry in entries[: MAX_ENTRIES + 1]]
    return [edit for part in edits for edit in part] if all(edits) and len(edits) <= MAX_ENTRIES else []


def scrambled_all(source, node, rng):
    """(start, end, text) of up to MAX_LEAVES literals of an operand. More than one: an equality may ignore some."""
    nodes = [] if node is None else own_leaves(node)
    edits = []
    for leaf in sorted(rng.sample(nodes, min(len(nodes), MAX_LEAVES)), key=source.span):
        text = scrambled_text(source.text(leaf), leaf, rng)
        if text is not None:
            edits.append((*source.span(leaf), text))
    return edits if edits and differs(source, node, edits) else []


def differs(source, node, edits):
    """Whether the operand is another value now, as far as it can be told: a set may come out the same."""
    if not pure(node):
        return True
    start, end = source.span(node)
    data = source.data[:end]
    for first, last, text in reversed(edits):
        data = data[:first] + text.encode() + data[last:]
    try:
        return ast.literal_eval(f"({data[start:].decode()})") != ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return False


def scrambled_text(text, node, rng):
    """Source text of another literal of the same kind; None when that cannot be written."""
    new = scrambled(text, node, rng)
    if new is None:
        return None
    try:
        same = ast.literal_eval(new) == ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return None
    return None if same else new


def scrambled(text, node, rng):
    if not isinstance(node, ast.Constant):  # an empty display: [], (), {}
        return {"[]": "[0]", "()": "(0,)", "{}": "{0: 0}"}.get(text.replace(" ", ""))
    value = node.value
    if isinstance(value, bool):
        return str(not value)
    if value is None:
        return "False"
    if isinstance(value, int):
        steps = [step for step in (-7, -3, -2, 2, 3, 5, 10) if value + step >= 0]
        return str(value + rng.choice(steps)) if text.isdigit() else hex(value + 2)
    if isinstance(value, float):
        return repr(value * 1.5 + 1.0)
    return scrambled_string(text, rng)


def scrambled_string(text, rng):
    """A word becomes another word of the text, or a letter or digit, of a longer text one in each half, another of its class."""
    match = QUOTED.match(text)
    if match is None or match.group(2) in match.group(3):
        return scrambled_one(text, rng)
    start, body = match.start(3), match.group(3).split("\\")[0]
    words = [item for item in WORD.finditer(body) if body.count(item.group()) == 1]
    if len(words) >= 3:  # other letters would make words that are in no dictionary
        old, new = rng.sample(words, 2)
        return text[: start + old.start()] + new.group() + text[start + old.end() :]
    places = [index for index, letter in enumerate(body) if letter in DIGITS + LOWER + UPPER]
    if not places:
        return f"{text[:start]}x{text[start:]}"
    half = len(places) // 2
    chosen = [rng.choice(places[:half]), rng.choice(places[half:])] if len(places) >= 6 else [rng.choice(places)]
    letters = list(text)
    for place in chosen:
        kind = next(kind for kind in (DIGITS, LOWER, UPPER) if body[place] in kind)
        letters[start + place] = rng.choice([letter for letter in kind if letter != body[place]])
    return "".join(letters)


def scrambled_one(text, rng):
    """Several texts written one after the other: one of them changes."""
    try:
        tokens = [
            item for item in tokenize.generate_tokens(io.StringIO(f"({text})").readline) if item.type == tokenize.STRING
        ]
    except (tokenize.TokenError, SyntaxError):
        return None
    if len(tokens) < 2:
        return None
    token = rng.choice(tokens)
    new = scrambled_string(token.string, rng)
    lines = text.splitlines(keepends=True)
    row, column = token.start[0] - 1, token.start[1] - (token.start[0] == 1)
    at = sum(len(line) for line in lines[:row]) + column
    return None if new is None else text[:at] + new + text[at + len(token.string) :]
