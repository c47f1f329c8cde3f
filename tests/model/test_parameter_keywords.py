"""Which keywords a parameter schema may hold (E101): those that JSON Schema 2020-12 knows, and notes."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY

from trainshed.model import parameter_schema
from trainshed.model.errors import Refusal
from trainshed.model.parameter_schema import schema_faults
from trainshed.model.recipe import parse_recipe, recipe_from_about


def schema(**keys) -> dict:
    return {"type": "object", **keys}


def places(found) -> list[tuple]:
    return [place for place, _ in found]


@pytest.mark.parametrize(
    ("part", "key", "said"),
    [
        ({"typ": "string"}, "typ", "did you mean `type`?"),
        ({"minimun": 3}, "minimun", "did you mean `minimum`?"),
        ({"additionalPropertes": False}, "additionalPropertes", "did you mean `additionalProperties`?"),
        ({"Enum": ["a"]}, "Enum", "did you mean `enum`?"),
        ({"steps": {"type": "integer"}}, "steps", "parameters stand below `properties`"),
        ({"whatever": 1}, "whatever", "a note of your own begins with `x-`"),
        ({"dependencies": {"a": ["b"]}}, "dependencies", "`dependentRequired`"),
        ({"additionalItems": False}, "additionalItems", "`prefixItems`"),
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda part: ({"type": "object", **part}, ()),
        lambda part: (schema(properties={"x": part}), ("properties", "x")),
        lambda part: (schema(**{"$defs": {"x": part}}), ("$defs", "x")),
        lambda part: (schema(patternProperties={"^x": part}), ("patternProperties", "^x")),
        lambda part: (schema(dependentSchemas={"x": part}), ("dependentSchemas", "x")),
        lambda part: (schema(allOf=[True, part]), ("allOf", 1)),
        lambda part: (schema(properties={"x": {"items": part}}), ("properties", "x", "items")),
        lambda part: (schema(additionalProperties=part), ("additionalProperties",)),
        lambda part: (
            schema(properties={"x": {"contentSchema": {"items": part}}}),
            ("properties", "x", "contentSchema", "items"),
        ),
    ],
)
def test_E101_a_keyword_that_is_none_is_refused_wherever_it_stands(part, key, said, around):
    given, place = around(part)
    [(where, message)] = schema_faults(given)
    assert where == (*place, key)
    assert message.startswith("is no keyword of JSON Schema 2020-12: ")
    assert said in message
    assert schema_faults(given, published=True) == []


def test_E101_misspelt_keywords_are_told_with_all_the_other_faults():
    given = {
        "type": "object",
        "additionalPropertes": False,
        "properties": {"a": {"typ": "string"}, "b": {"type": "integer", "minimun": 3, "default": "1"}},
        "required": "a",
    }
    assert set(places(schema_faults(given))) == {
        ("additionalPropertes",),
        ("properties", "a", "typ"),
        ("properties", "b", "minimun"),
        ("properties", "b", "default"),
        ("required",),
    }


def test_E101_notes_of_the_author_and_data_are_no_keywords():
    given = schema(
        properties={
            "typ": {"type": "string", "x-unit": "s", "$comment": "a name", "examples": [{"typ": 1}]},
            "minimun": {"enum": [{"typ": 1}], "default": {"typ": 1}},
            "c": {"const": {"typ": 1}},
        },
        dependentRequired={"typ": ["minimun"]},
        **{"x-note": {"typ": "string"}},
    )
    assert schema_faults(given) == []


def test_E101_the_keywords_known_are_those_of_the_metaschema():
    said = Draft202012Validator.META_SCHEMA
    vocabularies = [
        REGISTRY[f"https://json-schema.org/draft/2020-12/{each['$ref']}"] for each in said["allOf"]
    ]
    library = {key for each in vocabularies for key in each.contents["properties"]}
    assert set(parameter_schema._KEYWORDS) == library


RECIPE = b"""
abi = "envloop.train-recipe/1"
entrypoint = "train:main"
[parameters]
type = "object"
additionalPropertes = false
[parameters.properties.steps]
typ = "integer"
"""


def test_E101_the_file_of_a_recipe_is_refused_and_a_published_definition_still_counts():
    with pytest.raises(Refusal) as refused:
        parse_recipe(RECIPE)
    assert [fault.path for fault in refused.value.faults] == [
        "parameters.additionalPropertes",
        "parameters.properties.steps.typ",
    ]
    parameters = {"type": "object", "properties": {"steps": {"typ": "integer"}}}
    about = {"abi": "envloop.train-recipe/1", "entrypoint": "train:main", "parameters": parameters}
    assert recipe_from_about(about).parameters == parameters
