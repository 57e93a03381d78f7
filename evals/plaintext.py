"""A text as two texts are compared: without the case, numbering, escapes and look-alike letters that hide a copy.

Both sides go through it, so what it loses (a back-slash in a path, the numbers that a table's lines begin with, accents) is lost
alike. Not covered: base64 and other encodings, letters outside LOOK_ALIKES, code with a comment or another mark in every line.
"""

from __future__ import annotations

import re
import unicodedata

TOKEN = re.compile(r"\w+|[^\w\s]")
FENCE = re.compile(r"```|~~~")
ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|([nrt]))?")  # any number of back-slashes: JSON may lie in JSON
LINE_MARK = re.compile(r"^(?:[ \t]*(?:\d+[ \t]*[:|\t]|[>+#]))+", re.MULTILINE)  # `12: `, quotes, diffs, comments
SPACE = {"n": "\n", "r": "\n", "t": "\t"}
FILLERS = "\u115f\u1160\u2800"  # letters and symbols that show as nothing
LOOK_ALIKES = (
    ("авсԁеһніјкӏморԛѕтухѵԝАВСЕНІЈКМОРЅТУХ", "abcdehhijklmopqstyxvwABCEHIJKMOPSTYX"),  # Cyrillic
    ("αεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aeikvoptuxABEZHIKMNOPTYX"),  # Greek
    ("ıɑɡօոսհ‘’“”", "iagonuh''\"\""),  # Latin, Armenian, quotation marks
)


class _Letters(dict[int, int | None]):
    """For str.translate: what a character is read as; None: it is left out."""

    def __missing__(self, code: int) -> int | None:
        kind = unicodedata.category(chr(code))
        hidden = kind in ("Cf", "Mn", "Me") or chr(code) in FILLERS  # zero-width and other formats, accents
        self[code] = None if hidden else ord("-") if kind == "Pd" else code
        return self[code]


_LETTERS = _Letters({ord(a): ord(b) for theirs, ours in LOOK_ALIKES for a, b in zip(theirs, ours, strict=True)})


def plain(text: str) -> str:
    """Escapes decoded, compatibility forms and look-alikes made one, invisible characters and line marks off, case folded."""
    text = ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else SPACE.get(found[2], ""), text)
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).translate(_LETTERS)
    return LINE_MARK.sub("", text.casefold())


def blocks(text: str) -> list[str]:
    """What stands in or between fences of a plain text, without the line that a fence is in; never closed, it goes to the end."""
    return [part.partition("\n")[2] for part in FENCE.split(text)[1:]]
