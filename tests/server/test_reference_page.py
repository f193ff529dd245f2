# SPDX-License-Identifier: Apache-2.0
"""The page at /docs: all endpoints with fields and types, without another host."""

import re
from html.parser import HTMLParser

import pytest
from fastapi.routing import APIRoute
from starlette.routing import WebSocketRoute

from polyvox.server.app import ROUTERS
from polyvox.server.reference_page import render_reference
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving

pytestmark = pytest.mark.slow

# What makes a browser load a file: attributes of HTML, and imports of style sheets and scripts.
LOADED = re.compile(
    r"""(?:src|srcset|href|action|data|poster)\s*=\s*["']?([^"'\s>]+)|url\(\s*["']?([^"')]+)"""
    r"""|(?:@import|from|import)\s*\(?\s*["']([^"']+)""",
)


class Text(HTMLParser):
    """The text of a page, its anchors and its links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", set[str]()
        self.anchors: list[str | None] = []
        self.links: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.anchors += [found["id"]] if "id" in found else []
        self.links += [found.get("href")] if tag == "a" else []

    def handle_data(self, data: str) -> None:
        self.text += data


def document(schema: dict[str, object]) -> dict[str, object]:
    """An OpenAPI document whose only body has one field."""
    body = {"type": "object", "properties": {"field": schema}}
    operation = {
        "summary": "Do.",
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "Done."}},
    }
    return {"info": {"title": "T", "version": "1"}, "paths": {"/do": {"post": operation}}}


def test_no_page_refers_to_another_host(server: RunningServer) -> None:
    with server.client() as client:
        waiting, seen = ["/", "/docs"], set[str]()
        while waiting:
            path = waiting.pop()
            answer = client.get(path)
            assert answer.status_code == 200, path
            for reference in filter(None, (name for names in LOADED.findall(answer.text) for name in names)):
                assert not re.match(r"(?:[a-z]+:)?//", reference), f"{path}: {reference}"
                if reference.endswith((".css", ".js", ".svg")):
                    name = "/web/" + reference.rpartition("/")[2]
                    waiting += [] if name in seen else [name]
                    seen.add(name)
        assert {"/web/theme.css", "/web/reference.css", "/web/main.js", "/web/socket.js"} <= seen


def test_the_policy_of_the_page_allows_only_its_own_server(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.get("/docs")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|\*|unsafe", policy)
    assert not {"script", "style", "iframe"} & Text(answer.text).tags


def test_every_endpoint_has_its_fields_and_types(server: RunningServer) -> None:
    with server.client() as client:
        page = Text(client.get("/docs").text)
        assert client.get("/redoc").status_code == 404
    routes = [route for router in ROUTERS for route in router.routes]
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            names = [f"{method} {route.path.replace(':path', '')}" for method in route.methods or ()]
            assert all(name in page.text for name in names)
        elif isinstance(route, WebSocketRoute):
            assert route.path in page.text
    for words in ("response_format", "number, from 0.25 to 4", "application/json", "speech requests", "retry_after"):
        assert words in page.text
    assert len(set(page.anchors)) == len(page.anchors) > 40
    assert {link[1:] for link in page.links if link and link.startswith("#")} <= set(page.anchors)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "boolean", "default": True}, "boolean true"),
        (
            {"anyOf": [{"type": "integer", "minimum": 1.0, "maximum": 9}, {"type": "null"}]},
            "integer, from 1 to 9",
        ),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, "number, above 0 below 0.5"),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}, "list of a, b, at most 2 items"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"type": "string", "format": "binary"}, "file"),
        ({"const": "x"}, "x"),
        ({}, "any"),
        ({"type": "string", "description": "<b> & `code`"}, "string <b> & code"),
    ],
)
def test_a_type_is_shown_in_words(schema: dict[str, object], shown: str) -> None:
    text = " ".join(Text(re.sub("</t[dh]>", " ", render_reference(document(schema)))).text.split())
    assert f"description field {shown} Responses" in text


def test_the_page_works_below_a_path_prefix(engine: PausableEngine) -> None:
    with serving(engine, Settings(root_path="/tts")) as server, server.client() as client:
        page = client.get("/docs").text
    assert not re.search(r'(?:src|href)="/', page)  # relative to the page
