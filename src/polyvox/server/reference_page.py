# SPDX-License-Identifier: Apache-2.0
"""The page at /docs: all endpoints with their fields and types, as plain HTML from the OpenAPI document.

FastAPI's own pages load scripts from another host. This one loads only a style sheet of this server, so it works
without a network.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

Document = Mapping[str, Any]  # JSON

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} API</title>
<link rel="icon" href="web/icon.svg">
<link rel="stylesheet" href="web/reference.css">
</head>
<body>
<main>
<h1>{title} {version}: API</h1>
<p>All endpoints with their fields. The same as an OpenAPI document: <a href="openapi.json">openapi.json</a>.</p>
{contents}
</main>
</body>
</html>
"""
FIELD_COLUMNS = ("field", "type", "default", "description")
# JSON Schema keywords that limit a value, and how the page shows them.
LIMITS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}


def render_reference(document: Document, websockets: Iterable[str] = ()) -> str:
    """The HTML of an OpenAPI document. websockets: paths of WebSockets, which such a document cannot have."""
    schemas: Document = document.get("components", {}).get("schemas", {})
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    shown_apart = set(_references([schemas, *(_without_body_names(operation) for _, operation in operations)]))
    contents = [
        _list(f'<a href="#{_anchor(name)}">{_code(name)}</a> {_text(each, "summary")}' for name, each in operations),
        *(_operation(name, operation, schemas) for name, operation in operations),
        "<h2>WebSockets</h2>",
        _list(_code(path) for path in websockets),
        "<h2>Objects</h2>",
        *(_object(name, schema) for name, schema in schemas.items() if name in shown_apart),
    ]
    info = {key: escape(document["info"][key]) for key in ("title", "version")}
    return PAGE.format(contents="\n".join(contents), **info)


def _operation(name: str, operation: Document, schemas: Document) -> str:
    parts = [f'<h2 id="{_anchor(name)}">{_code(name)}</h2>']
    parts += [_paragraph(operation, key) for key in ("summary", "description")]
    for location in ("path", "query", "header"):
        found = [each for each in operation.get("parameters", ()) if each["in"] == location]
        rows = [_field_row(each["name"], each["schema"], each.get("required", False)) for each in found]
        if rows:
            parts += [f"<h3>In the {location}</h3>", _table(FIELD_COLUMNS, rows)]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content.get("schema", {})
        body = schemas.get(_reference(schema), schema)
        parts += [f"<h3>Body: {_code(media_type)}</h3>", _paragraph(body, "description"), _fields(body)]
    responses = [
        (_code(status), _text(response, "description"), _content(response.get("content", {})))
        for status, response in operation["responses"].items()
    ]
    parts += ["<h3>Responses</h3>", _table(("status", "description", "content"), responses)]
    return "\n".join(filter(None, parts))


def _content(content: Document) -> str:
    """The media types of a response, with their objects."""
    found = []
    for media_type, each in content.items():
        schema = each.get("schema", {})
        found.append(f"{_code(media_type)} ({_type(schema)})" if _reference(schema) else _code(media_type))
    return ", ".join(found)


def _without_body_names(operation: Document) -> list[object]:
    """The parts of an operation whose references are links: the fields of a body are shown in place of its name."""
    bodies = [content.get("schema", {}) for content in operation.get("requestBody", {}).get("content", {}).values()]
    inline = [schema for schema in bodies if not _reference(schema)]
    return [operation.get("parameters", []), operation["responses"], inline]


def _references(node: object) -> Iterator[str]:
    """The names of all objects that a part of the document refers to."""
    if isinstance(node, Mapping):
        yield from filter(None, [_reference(node)])
        yield from (name for value in node.values() for name in _references(value))
    elif isinstance(node, list):
        yield from (name for value in node for name in _references(value))


def _object(name: str, schema: Document) -> str:
    heading = f'<h3 id="{_anchor(name)}">{_code(name)}</h3>'
    return "\n".join(filter(None, (heading, _paragraph(schema, "description"), _fields(schema))))


def _fields(schema: Document) -> str:
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    return _table(FIELD_COLUMNS, [_field_row(name, field, name in required) for name, field in fields])


def _field_row(name: str, schema: Document, required: bool) -> tuple[str, ...]:
    default = "required" if required else _code(_shown(schema["default"])) if _has_default(schema) else ""
    return _code(name), _type(schema), default, _text(schema, "description")


def _has_default(schema: Document) -> bool:
    return schema.get("default") not in (None, "")


def _type(schema: Document) -> str:
    """The type of a value in words, with its limits, as HTML. Every field may be null, so that is left out."""
    if name := _reference(schema):
        return f'<a href="#{_anchor(name)}">{escape(name)}</a>'
    if choices := schema.get("anyOf"):
        return " or ".join(_type(choice) for choice in choices if choice.get("type") != "null")
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(_code(_shown(value)) for value in values)
    kind = escape(schema.get("type", "any"))
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {}))}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_type(schema['additionalProperties'])}"
    elif schema.get("format") == "binary" or "contentMediaType" in schema:
        kind = "file"
    limits = [form.format(_shown(schema[name])) for name, form in LIMITS.items() if name in schema]
    return f"{kind}, {escape(' '.join(limits))}" if limits else kind


def _reference(schema: Document) -> str:
    """The name of the object that a schema refers to, or nothing."""
    reference: str = schema.get("$ref", "")
    return reference.rpartition("/")[2]


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of HTML cells; nothing without rows."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{item}</li>" for item in items) + "\n</ul>"


def _anchor(name: str) -> str:
    return escape("".join(letter if letter.isalnum() else "-" for letter in name))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _text(source: Document, key: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(source.get(key, "")))


def _paragraph(source: Document, key: str) -> str:
    text = _text(source, key)
    return f"<p>{text}</p>" if text else ""
