"""Building blocks of a task file's sections: their base model, and value types with messages for mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from ..errors import TailraceError
from ..lake.storage import SCHEMES
from . import addresses, secrets

UNRESOLVED = "postgresql://"
"""Stands for an address whose variables have no value, in a process that does not connect."""
_NAME = "[a-z0-9_-]{1,40}"
"""Pattern of names that publication, slot and folders can have."""


def _text(value: Any) -> Any:
    # YAML reads `name: 2024` as a number and `no` as false; this message is clearer than pydantic's.
    if isinstance(value, (bool, int, float)):
        raise ValueError(f"{value!r} is not text: put it in quotes")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise ValueError(
            f"{value!r} is no name of a task: write 1 to 40 lower-case letters (a to z), digits, _ and -"
        )
    return value


def _pattern(value: str) -> str:
    if "." not in value:
        raise ValueError(f"{value!r} has no schema: write schema.table, e.g. public.{value}")
    return value


def _column(value: str) -> str:
    if value.count(".") < 2:
        raise ValueError(f"{value!r} has no column: write schema.table.column")
    return value


def _address(url: str, info: ValidationInfo) -> str:
    strict = _connects(info)
    found = secrets.expand(url, _start(info), address=True, strict=strict)
    return UNRESOLVED if not strict and "://" not in found and _lacks(url, _start(info)) else found


def _lacks(url: str, folder: Path) -> bool:
    """Whether something is not there that a text names."""
    try:
        secrets.expand(url, folder, address=True)
    except ValueError:
        return True
    return False


def arguments_expanded(arguments: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Keyword arguments, with variables and files in their texts replaced."""
    start, strict = _start(info), _connects(info)
    return {
        k: secrets.expand(v, start, strict=strict) if isinstance(v, str) else v for k, v in arguments.items()
    }


def _connects(info: ValidationInfo) -> bool:
    """Whether the task file is read by what may connect: it needs the secrets."""
    return bool((info.context or {}).get("connects", True))


def _start(info: ValidationInfo) -> Path:
    """The folder that relative paths start from."""
    return Path((info.context or {}).get("folder") or Path.cwd())


def _known_scheme(url: str) -> str:
    try:
        addresses.source_scheme(url)
    except TailraceError as error:
        raise ValueError(f"{error.what}; {error.hint}") from None
    return url


def _database(url: str) -> str:
    if url and "://" not in url:
        raise ValueError(
            "this is no address: write postgresql://user@host:port/database, or a folder as it is"
        )
    if url and url.partition("://")[0] not in {"postgresql", "postgres"}:
        raise ValueError("there is no target of that scheme: write postgresql://user@host:port/database")
    try:
        addresses.check(url or "postgresql://")
    except TailraceError as error:
        raise ValueError(f"{error.what}; {error.hint}") from None
    return url


def _folder(value: str, info: ValidationInfo) -> str:
    """A folder as absolute path; a relative one starts at the task file (without one, at the current
    folder)."""
    if "://" in value:
        raise ValueError("an address is not a folder: this has to be a folder of this machine")
    if "${" in value:
        raise ValueError("a folder takes nothing from elsewhere: `${...}` is for addresses")
    return str((_start(info) / Path(value).expanduser()).resolve())


def _place(value: str, info: ValidationInfo) -> str:
    """A folder, or an address in an object store."""
    if "://" not in value or value.startswith("file://"):
        return _folder(unquote(value.removeprefix("file://")), info)
    value = value.replace("s3a://", "s3://", 1) if value.startswith("s3a://") else value
    scheme, _, rest = value.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise ValueError(f"there is no object store of the scheme {scheme}: write a folder, or {known}")
    if not rest.strip("/") or any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")):
        raise ValueError(f"{value!r} is no address of a folder: write {scheme}://bucket/folder")
    if set(value) & set("%?#"):
        raise ValueError("the address of a folder has no %, ? or #: settings go under `storage`")
    return value.rstrip("/")


def _secret(value: str, info: ValidationInfo) -> str:
    return secrets.expand(value, _start(info), strict=_connects(info))


def _lake_type(value: str) -> str:
    from ..model.types import arrow_type  # Arrow takes longer to load than all of `config`

    try:
        arrow_type(value)
    except TailraceError as error:
        raise ValueError(f"{error.what}; {error.hint}") from None
    return value


def _conf_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else str(value)


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[Text, AfterValidator(_name), Field(json_schema_extra={"pattern": f"^{_NAME}$"})]
Pattern = Annotated[str, BeforeValidator(_text), AfterValidator(_pattern)]
ColumnName = Annotated[str, BeforeValidator(_text), AfterValidator(_column)]
Url = Annotated[str, BeforeValidator(_text), AfterValidator(_address), AfterValidator(_known_scheme)]
TargetUrl = Annotated[str, BeforeValidator(_text), AfterValidator(_address), AfterValidator(_database)]
Folder = Annotated[str, BeforeValidator(_text), AfterValidator(_folder)]
Place = Annotated[str, BeforeValidator(_text), AfterValidator(_place)]
Secret = Annotated[str, BeforeValidator(_text), AfterValidator(_secret)]
LakeType = Annotated[str, BeforeValidator(_text), AfterValidator(_lake_type)]
Level = Annotated[int, Field(ge=0, le=3)]
SparkName = Annotated[str, Field(pattern=r"^spark\.")]
ConfText = Annotated[
    str, BeforeValidator(_conf_text), WithJsonSchema({"type": ["string", "number", "boolean"]})
]


def plain(said: str) -> str:
    """A message of pydantic in the terms of this project.

    >>> plain("Value error, must be more than 0"), plain("Input should be a valid list")
    ('must be more than 0', 'must be a valid list')
    >>> plain("List should have at least 1 item after validation, not 0")
    'must have at least 1 item'
    """
    said = re.sub(r"^(Input|List) should", "must", said.removeprefix("Value error, "))
    return re.sub(r" after validation, not \d+$", "", said)


class Settings(BaseModel):
    """A section: unknown keys are mistakes, values are immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )
