"""A record as JSON, and back.

The JSON is strict (RFC 8259), and that has no word for numbers that are not finite. An infinite error must not turn
into "not measured", so they are written as the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, as in the JSON of
Protocol Buffers; `float()` of Python and `Number()` of JavaScript read them. Reading puts the numbers back wherever the
record's field is a number.
"""

import functools
import math
import types
import typing
from typing import Any, TypeVar

import msgspec

from crosshead.results.errors import StoreError, VersionError
from crosshead.results.privacy import scrub_record
from crosshead.results.records import SCHEMA, RunRecord

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


RecordT = TypeVar("RecordT", bound=msgspec.Struct)


def encode_run(record: RunRecord) -> bytes:
    """Return a run as `encode_record` does."""
    return encode_record(record)


def encode_record(record: msgspec.Struct) -> bytes:
    """Return a record as indented UTF-8 JSON with a final newline; equal records give equal bytes.

    Free text is scrubbed of paths and names here, since this is the one way a record leaves the program.
    """
    tree = spell(msgspec.to_builtins(scrub_record(record)))
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


def decode_run(data: bytes | str) -> RunRecord:
    """Return the run that `encode_run` wrote. Fields that this version does not know are passed over.

    Raises:
        VersionError: the record has another schema version.
        StoreError: this is no JSON, or no record of a run.
    """
    return decode_record(data, RunRecord, SCHEMA, "a run")


def decode_record(data: bytes | str, kind: type[RecordT], schema: str, what: str = "this kind") -> RecordT:
    """Return the record that `encode_record` wrote. Fields that this version does not know are passed over.

    Args:
        data: JSON.
        kind: of the record.
        schema: of this version, `name/number`.
        what: names the kind in messages, e.g. `a run`.

    Raises:
        VersionError: the record has another schema version.
        StoreError: this is no JSON, or no record of that kind.
    """
    try:
        tree = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise StoreError(f"the record is damaged, it is not valid JSON: {error}") from error
    found = tree.get("schema") if isinstance(tree, dict) else None
    if not isinstance(found, str) or found.partition("/")[0] != schema.partition("/")[0]:
        raise StoreError(f'this is no record of {what}: expected JSON with "schema": "{schema}"')
    if found != schema:
        raise VersionError(
            f"the record is of schema {found}, and this crosshead reads {schema}; "
            f"read it with the crosshead that wrote it ({tree.get('crosshead', 'version not named')}), or run again"
        )
    try:
        return msgspec.convert(_revive(tree, kind), kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"the record is damaged: {error}") from error


def spell(value: Any) -> Any:
    """Replace what JSON cannot hold: numbers that are not finite, and lone surrogates (undecodable worker output)."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0.0 else "-Infinity"
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {spell(key): spell(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spell(item) for item in value]
    return value


def _revive(value: Any, kind: Any) -> Any:
    """Put numbers back where the type says number; a union that also takes text keeps the text."""
    union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    members = typing.get_args(kind) if union else (kind,)
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value) if float in members and str not in members else value
    for member in members:
        origin = typing.get_origin(member)
        if isinstance(value, list) and origin is list:
            (item_kind,) = typing.get_args(member)
            return [_revive(item, item_kind) for item in value]
        if isinstance(value, dict) and origin is dict:
            _, item_kind = typing.get_args(member)
            return {key: _revive(item, item_kind) for key, item in value.items()}
        if isinstance(value, dict) and isinstance(member, type) and issubclass(member, msgspec.Struct):
            kinds = _field_kinds(member)
            return {key: _revive(item, kinds.get(key)) for key, item in value.items()}
    return value


@functools.cache
def _field_kinds(record: type[msgspec.Struct]) -> dict[str, Any]:
    return typing.get_type_hints(record)
