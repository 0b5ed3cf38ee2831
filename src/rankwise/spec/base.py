"""What all models of documents have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from rankwise.spec.mistakes import Mistake
from rankwise.spec.values import wrong
from rankwise.spec.written import Found, Section


class Clash(NamedTuple):
    """Something that a field cannot see for itself: a part that does not go with another one."""

    path: tuple[int | str, ...]
    """From the model in which it was noticed."""
    message: str


@dataclass(slots=True)
class Review:
    """What comes to light while a document is checked, beside the errors of single fields."""

    mistakes: list[Mistake] = field(default_factory=list)
    _models: dict[int, type[Model]] = field(default_factory=dict)

    def see(self, model: type[Model], contents: Section) -> None:
        """Take note of which model a part of the document was taken for, and of its clashes."""
        self._models[id(contents)] = model
        self.mistakes += [
            Mistake(Found(contents, clash.path).key_at, clash.message)
            for clash in model.clashes(contents)
        ]

    def model_of(self, contents: object) -> type[Model] | None:
        """Tell which model a part of the document was taken for."""
        return self._models.get(id(contents))


class Model(BaseModel):
    """A mapping with known fields. A field that is there but empty counts as left out."""

    # Built when they are used: a command needs one type of document, or none.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    short_form: ClassVar[str] = ""
    """The field that is meant if there is only a text instead of a mapping."""
    hints: ClassVar[Mapping[str, str]] = {}
    """What to say about fields that people expect here but which do not exist."""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        """Find what does not go together in contents that may be wrong in any other way, too."""
        yield from ()

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Name all fields as documents write them."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _look_over(cls, contents: Any, info: ValidationInfo) -> Any:
        if cls.short_form and isinstance(contents, str):
            return {cls.short_form: contents}
        if not isinstance(contents, Mapping):
            return contents
        if isinstance(info.context, Review) and isinstance(contents, Section):
            info.context.see(cls, contents)
        else:
            for clash in cls.clashes(contents):
                raise wrong(clash.message)
        optional = {
            field.alias or name
            for name, field in cls.model_fields.items()
            if not field.is_required()
        }
        return {
            name: value
            for name, value in contents.items()
            if value is not None or name not in optional
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        if not cls.short_form:
            return schema
        whole = handler.resolve_ref_schema(schema)
        text = {**whole["properties"][cls.short_form]}
        text.pop("default", None)
        mapping = {**whole}
        whole.clear()
        whole.update(
            title=mapping.pop("title"),
            description=mapping.pop("description", ""),
            anyOf=[text, mapping],
        )
        return schema


def mapping_in(contents: Any, *path: str) -> Mapping[str, Any]:
    """Follow a path through mappings; an empty one if there is none at its end."""
    for step in path:
        contents = contents.get(step) if isinstance(contents, Mapping) else None
    return contents if isinstance(contents, Mapping) else {}
