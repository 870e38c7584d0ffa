"""Tables of a TOML file as pydantic models made from the model classes, so that a rule is written once.

A converter and a validator of an attrs field read its key; a check across fields runs once every key is good. All
faults of a table and of the tables in it are collected, each with its key path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import cache, partial
from typing import Annotated, Any, TypeVar, cast

import attrs
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import optional_seconds, to_seconds
from queuetheory_llm.exact.words import shown

T = TypeVar("T")
Path = tuple[str | int, ...]
_KEYED = re.compile(r"(?P<key>[a-z]\w*): (?P<what>.+)", re.DOTALL)


class Faults(ValueError):
    """What is wrong in a table: (key path from the table, what) pairs."""

    def __init__(self, found: Sequence[tuple[Path, str]]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(f"{path_text(path)}: {what}" for path, what in self.found))


def path_text(path: Path) -> str:
    """``("workload", "class", 0, "weight")`` is ``workload.class[0].weight``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_printable(step)}" for step in path)
    return text.removeprefix(".")


def _printable(key: str) -> str:
    """A key as it is, or quoted with escapes: TOML allows line ends in one, and a fault is one line."""
    return key if key.isprintable() else repr(key)


class Table(BaseModel):
    """A table whose unknown keys are faults."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


M = TypeVar("M", bound=BaseModel)


def read_table(model: type[M], raw: object) -> M:
    """The table ``raw`` as ``model``.

    Raises
    ------
    Faults
        All of them, with key paths from this table.
    """
    if not isinstance(raw, Mapping):
        raise Faults([((), 'must be a table, such as { key = "value" }')])
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise Faults([fault for item in error.errors() for fault in _faults(model, item)]) from None


def _faults(model: type[BaseModel], item: Mapping[str, Any]) -> list[tuple[Path, str]]:
    where: Path = tuple(item["loc"])
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, Faults):
        return [(where + path, what) for path, what in cause.found]
    if isinstance(cause, InvalidInput):
        return [(where, fault) for fault in cause.faults]
    keys = [field.alias or name for name, field in model.model_fields.items()]
    if item["type"] == "extra_forbidden":
        return [(where, f"unknown key; {near_word(str(where[-1]), keys)}")]
    if item["type"] == "missing":
        hint = next(f.description for n, f in model.model_fields.items() if (f.alias or n) == where[-1])
        return [(where, f"missing; {hint or 'add it'}")]
    return [(where, str(item["msg"]))]


def near_word(word: str, known: Sequence[str]) -> str:
    """How to mend a word that is not one of ``known``."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def field_of(cls: type, name: str) -> PlainValidator:
    """The converter and validator of one field of an attrs class, as the validator of a key."""
    return reading(partial(_read_field, getattr(attrs.fields(cls), name)))


def reading(read: Callable[[Any], Any]) -> PlainValidator:
    """A function as the validator of a key; it raises `Faults` or `InvalidInput`."""
    return PlainValidator(read)


def one_of(known: Sequence[str], raw: object) -> str:
    """A word out of a list; `InvalidInput` with the nearest one otherwise."""
    if raw not in known:
        raise InvalidInput(f"{shown(raw)} is not known; {near_word(str(raw), known)}")
    return str(raw)


def read_text(raw: object) -> str:
    """A string."""
    if not isinstance(raw, str):
        raise InvalidInput(f"{shown(raw)} is not text; put it in quotes")
    return raw


def read_names(raw: object) -> tuple[str, ...]:
    """A list of names."""
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise InvalidInput('is no list of names; write ["a", "b"]')
    return tuple(raw)


def read_name_or_names(raw: object) -> tuple[str, ...]:
    """A name, or a list of them."""
    return (raw,) if isinstance(raw, str) else read_names(raw)


def read_each(read: Callable[[object], T], key: str, raw: object) -> tuple[T, ...]:
    """The tables of ``[[key]]``, all their faults collected."""
    if not isinstance(raw, list):
        raise InvalidInput(f"write [[{key}]] in double brackets, once for each")
    found, faults = [], []
    for index, item in enumerate(raw):
        try:
            found.append(read(item))
        except Faults as error:
            faults += [((index, *where), what) for where, what in error.found]
    if faults:
        raise Faults(faults)
    return tuple(found)


def read_entry(model: type[Table], key: str, raw: object) -> Any:
    """What a table reads under its only key; the key path of a fault begins below it."""
    try:
        return getattr(read_table(model, {key: raw}), key)
    except Faults as error:
        raise Faults([(where[1:], what) for where, what in error.found]) from None


def read_duration(raw: object) -> Any:
    """A duration, which carries its unit in a model file."""
    if isinstance(raw, str):
        return to_seconds(raw)
    if isinstance(raw, bool) or not isinstance(raw, int | float | Decimal):
        raise InvalidInput(f'{shown(raw)} is no duration; write a number and a unit in quotes, such as "35 ms"')
    raise InvalidInput(f'{raw} has no unit; write "{raw} ms" or "{raw} s"')


@cache
def table_of(cls: type, aliases: tuple[tuple[str, str], ...] = (), law: str | None = None) -> type[Table]:
    """The table that a frozen attrs class is read from, made once: a sweep reads thousands of files.

    Parameters
    ----------
    cls : attrs class
    aliases : pairs
        (field, key) where the file has another word.
    law : str, optional
        Value of the ``law`` key beside the fields.
    """
    keys = dict(aliases)
    fields: dict[str, Any] = {} if law is None else {"law": (str, law)}
    for field in attrs.fields(cls):
        required = field.default is attrs.NOTHING
        info = Field(... if required else None, alias=keys.get(field.name, field.name))
        fields[field.name] = (Annotated[Any, reading(partial(_read_field, field))], info)
    return create_model(cls.__name__, __base__=Table, **fields)


def _read_field(field: attrs.Attribute[Any], raw: object) -> Any:
    """One key through the converter and the validator of its field."""
    if str(field.type).startswith("tuple"):
        return _read_list(field, raw)
    convert = cast("Callable[[Any], Any] | None", field.converter)
    if convert in (to_seconds, optional_seconds):
        convert = read_duration
    value = raw if convert is None else convert(raw)
    if field.validator is not None:
        try:
            field.validator(None, field, value)
        except InvalidModel as error:
            raise InvalidInput([fault.removeprefix(f"{field.name}: ") for fault in error.faults]) from None
    return value


def _read_list(field: attrs.Attribute[Any], raw: object) -> Any:
    if not isinstance(raw, list):
        raise InvalidInput(f"{shown(raw)} is not a list; write [{shown(raw)}]")
    convert = cast("Callable[[Any], tuple[Any, ...]]", field.converter)
    values: list[Any] = []
    faults: list[tuple[Path, str]] = []
    for index, item in enumerate(raw):
        try:
            values += convert([item])
        except InvalidInput as error:
            faults += [((index,), fault) for fault in error.faults]
    if faults:
        raise Faults(faults)
    return tuple(values)


def build(make: Callable[[], T], key: Path = ()) -> T:
    """Make an object; its complaints ``field: what`` become faults under ``key``."""
    try:
        return make()
    except InvalidInput as error:
        raise Faults([_keyed(key, fault) for fault in error.faults]) from None


def _keyed(key: Path, fault: str) -> tuple[Path, str]:
    match = _KEYED.fullmatch(fault)
    return (key, fault) if match is None else ((*key, match["key"]), match["what"])


def law_name(known: Sequence[str], raw: object) -> str:
    """The ``law`` of a table, one of ``known``; `Faults` otherwise."""
    if not isinstance(raw, Mapping):
        raise Faults([((), f'must be a table such as {{ law = "{known[0]}", ... }}')])
    if "law" not in raw:
        raise Faults([(("law",), f"missing; write one of {', '.join(known)}")])
    try:
        return one_of(known, raw["law"])
    except InvalidInput as error:
        raise Faults([(("law",), str(error))]) from None


def read_law(laws: Mapping[str, type[T]], aliases: Mapping[str, tuple[tuple[str, str], ...]], raw: object) -> T:
    """An object of one of several classes, named by the key ``law``.

    Parameters
    ----------
    laws : mapping
        Name -> class.
    aliases : mapping
        Name -> (field, key) pairs; see `table_of`.
    """
    name = law_name(list(laws), raw)
    cls: Any = laws[name]  # a type: mypy doubts that those are hashable
    table: Table = read_table(table_of(cls, aliases.get(name, ()), name), raw)
    given = {field: getattr(table, field) for field in table.model_fields_set if field != "law"}
    return build(lambda: cast("T", cls(**given)))
