"""Ids of categories, as psd-trainer reads them from Criteo's files."""

from __future__ import annotations

from . import _arguments, _psd

_FIELD_MAX = (1 << 32) - 1


def hash_category(field: int, text: str | bytes) -> int:
    """The id of a category, a text in the field of this number: an unsigned number of 64 bits, the same in every version and on
    every machine. In Criteo's files the 13 numbers are the fields 0 to 12, the categories 13 to 38; a missing category is the
    empty text, and the id of a number is that of the empty text in its field. A str is encoded as UTF-8."""
    number = _arguments.integer("field", field, 0, _FIELD_MAX)
    return _psd.hash_category(number, text.encode() if isinstance(text, str) else text)
