"""Problems of a spec in a person's words: pydantic's errors as `problem; remedy`, with the nearest name for a typo."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel

from schemas.goal import GoalSpec

Place: TypeAlias = tuple[str | int, ...]
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}


def shown(value: object, limit: int = 60) -> str:
    """One printable line of at most `limit` characters, whatever the value holds."""
    text = (
        ascii(value) if not isinstance(value, bool | None) else {True: "true", False: "false", None: "nothing"}[value]
    )
    return text if len(text) <= limit else text[: limit - 3] + "..."


def worded(error: dict[str, Any], loc: Place) -> str:
    """`problem; remedy` for one pydantic error at pydantic's own location `loc`."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    value = shown(error.get("input"))
    if kind == "missing":
        return "is missing; add it"
    if kind == "extra_forbidden":
        return f"unknown field; {suggestion(str(loc[-1]), fields_at(loc[:-1]))}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        name = str(context["discriminator"]).strip("'")
        tags = context.get("expected_tags") or ", ".join(_tags(loc, name))
        return f"{name} is {shown(context.get('tag'))}; use one of {tags}"
    if kind in ("literal_error", "enum"):
        return f"is {value}; use {context['expected']}"
    if kind == "value_error":
        text = str(context.get("error", error["msg"]))
        return text if ";" in text else f"{text}; correct one of them"
    wanted = next((words for name, words in _TYPES.items() if kind in (f"{name}_type", f"{name}_parsing")), None)
    if kind == "int_from_float":
        wanted = _TYPES["int"]
    if kind == "model_attributes_type":
        wanted = _TYPES["model"]
    return f"is {value}; write {wanted}" if wanted else _bounded(kind, context, value, str(error["msg"]))


def _bounded(kind: str, context: dict[str, Any], value: str, message: str) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    for name, sign in signs.items():
        if name in context and kind.startswith(("greater_than", "less_than")):
            return f"is {value}; use a value {sign} {context[name]:g}"
    if kind == "string_pattern_mismatch":
        return f"is {value}; it must match {context['pattern']}"
    if kind == "too_short":
        return f"has {context['actual_length']} entries; give at least {context['min_length']}"
    return f"is {value}: {' '.join(message.split())}; correct it"


def suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"known here: {', '.join(known)}" if known else "remove it"


def fields_at(loc: Place) -> list[str]:
    """Names of the fields that the schema has at pydantic's location `loc`, sorted."""
    kinds: list[Any] = [GoalSpec]
    for part in loc:
        kinds = [below for kind in kinds for below in _below(kind, part)] or _tagged(kinds, part)
    return sorted({name for kind in kinds if _is_model(kind) for name in kind.model_fields})


def _tags(loc: Place, discriminator: str) -> list[str]:
    kinds: list[Any] = [GoalSpec]
    for part in loc:
        kinds = [below for kind in kinds for below in _below(kind, part)] or _tagged(kinds, part)
    return [str(kind.model_fields[discriminator].default) for kind in kinds if discriminator in kind.model_fields]


def _tagged(kinds: list[Any], tag: str | int) -> list[Any]:
    """Those members of a union whose kind or method is `tag`."""
    fields = ((kind, kind.model_fields.get(name)) for kind in kinds if _is_model(kind) for name in ("kind", "method"))
    return [kind for kind, field in fields if field is not None and field.default == tag]


def _below(kind: Any, part: str | int) -> Iterator[Any]:
    if _is_model(kind) and part in kind.model_fields:
        # In a union the first part is the tag, even where a field has the same name (model.package.package).
        tagged = any(
            name in kind.model_fields and kind.model_fields[name].default == part for name in ("kind", "method")
        )
        yield from () if tagged else _members(kind.model_fields[part].annotation)
    elif get_origin(kind) is list and isinstance(part, int):
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) is dict:
        yield from _members(get_args(kind)[1])


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
