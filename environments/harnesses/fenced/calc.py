"""A calculator for model-written text: numbers, + - * / // % ** and a few functions. The same file in both harnesses.

The expression is parsed, never evaluated by Python; its length, nesting, exponents and results are bounded.
"""

import ast
import math
import operator

MAX_CHARS = 400
MAX_DIGITS = 60
BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg}
FUNCTIONS = {"sum": lambda *items: sum(items), "min": min, "max": max, "abs": abs, "round": round}


class CalcError(Exception):
    """One line for the model: what cannot be computed."""


def calculate(text):
    """The value of an expression as text: an int, or a float rounded to 10 significant digits. Raises CalcError."""
    text = text.strip()
    if not text:
        raise CalcError("empty expression")
    if len(text) > MAX_CHARS:
        raise CalcError(f"expression longer than {MAX_CHARS} characters")
    try:
        return shown(value_of(ast.parse(text, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CalcError("not an arithmetic expression") from None
    except ZeroDivisionError:
        raise CalcError("division by zero") from None
    except (OverflowError, TypeError):
        raise CalcError("no finite number") from None


def value_of(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](value_of(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        left, right = value_of(node.left), value_of(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise CalcError("exponent above 64")
        return bounded(BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        args = [item for arg in node.args for item in items_of(arg)]
        if node.func.id == "round" and len(args) > 1 and not -MAX_DIGITS <= args[1] <= MAX_DIGITS:
            raise CalcError(f"round to more than {MAX_DIGITS} digits")  # else it computes 10 to that power
        if node.func.id in FUNCTIONS:
            return bounded(FUNCTIONS[node.func.id](*args))
    raise CalcError("only numbers, + - * / // % ** ( ) and sum, min, max, abs, round")


def items_of(node):
    if isinstance(node, ast.List | ast.Tuple):
        return [value_of(item) for item in node.elts]
    return [value_of(node)]


def bounded(value):
    if type(value) not in (int, float) or (type(value) is float and not math.isfinite(value)):
        raise CalcError("no finite number")
    if abs(value) >= 10**MAX_DIGITS:
        raise CalcError(f"a number with more than {MAX_DIGITS} digits")
    return value


def shown(value):
    if type(value) is float and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return str(value) if type(value) is int else f"{value:.10g}"
