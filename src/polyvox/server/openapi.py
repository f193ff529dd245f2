"""What the OpenAPI document tells of requests and answers that are read and written by hand."""

from typing import Any

from pydantic import BaseModel, Field


class Told(BaseModel):
    message: str = Field(description="The field, its value, what is allowed; or what to do.")
    type: str
    param: str | None
    code: str
    retry_after: float = Field(default=0.0, description="Seconds; only where there was no room.")


class Failure(BaseModel):
    """What every refusal looks like."""

    error: Told


FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Failure, "description": "Refused; the message says why."},
    503: {
        "model": Failure,
        "description": "No place is free, or the engine is away; see retry-after.",
    },
}


def taken(model: type[BaseModel], **parameters: dict[str, Any]) -> dict[str, Any]:
    """openapi_extra of a route that takes a model as JSON, and parameters of the query."""
    return taken_as({"application/json": schema_of(model)}, **parameters)


def taken_as(schemas: dict[str, dict[str, Any]], **parameters: dict[str, Any]) -> dict[str, Any]:
    """The same for bodies of several kinds."""
    content = {kind: {"schema": schema} for kind, schema in schemas.items()}
    query = [{"name": name, "in": "query", "required": False, **told} for name, told in parameters.items()]
    return {"requestBody": {"required": True, "content": content}} | ({"parameters": query} if query else {})


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema as a body may be: null is as good as none. It stands for itself, without references."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        if name not in schema.get("required", []) and {"type": "null"} not in field.get("anyOf", []):
            about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **about}

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(part) for part in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return whole(parts[value["$ref"].removeprefix("#/$defs/")])
        return {name: whole(part) for name, part in value.items()}

    return whole(schema)
