# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' endpoints for pronunciation dictionaries, and the locators that name them in requests."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.server.app_state import AppState, State
from polyvox.server.forms import FORM_TYPE, check_content_type, parse_form
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.requests import JSONRoute, RequestModel, parse_integer, read_body
from polyvox.text import Lexicon
from polyvox.text.dictionary_library import Dictionary, updated
from polyvox.text.lexicon_files import MAX_FILE_BYTES, parse_pls, parse_rules, to_pls, to_rule
from polyvox.text.phonemes import mark_phonemes

router = APIRouter(route_class=JSONRoute, prefix="/v1/pronunciation-dictionaries")

PLS_TYPE = "application/pls+xml"
FILE_FIELD = "file"
MAX_LOCATORS = 3  # of one request, as ElevenLabs
MAX_PAGE = 100
_FORM_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        FILE_FIELD: {"type": "string", "format": "binary"},
    },
    "required": ["name"],
}


class DictionaryLocator(RequestModel):
    """A dictionary of a request. version_id: by default the newest version."""

    pronunciation_dictionary_id: str
    version_id: str | None = None


class RulesRequest(RequestModel):
    """Rules have string_to_replace, a type, and an alias, or a phoneme and its alphabet."""

    rules: list[dict[str, Any]]


class NewDictionary(RulesRequest):
    name: str
    description: str | None = None


class RemovedRules(RequestModel):
    rule_strings: list[str] = Field(description="The words whose rules are removed.")


class DictionaryChanges(RequestModel):
    name: str | None = None
    archived: bool = Field(default=False, description="true: delete the dictionary.")


async def find_lexicons(
    state: AppState, owner: str, locators: list[DictionaryLocator] | None, ignored: IgnoredFields
) -> tuple[Lexicon, ...]:
    """The lexicons of a request, of which the first has precedence. Raises UnknownDictionary."""
    if not locators:
        return ()
    field = "pronunciation_dictionary_locators"
    if len(locators) > MAX_LOCATORS:
        raise InvalidRequest(field, len(locators), f"must have at most {MAX_LOCATORS} locators")
    found = [
        await state.synthesis.in_thread(
            state.dictionaries.get, owner, each.pronunciation_dictionary_id, each.version_id
        )
        for each in locators
    ]
    if not state.info.takes_phonemes and any(each.has_phonemes for each in found):
        ignored.add_unsupported(f"{field}.phoneme", state.info.unsupported(field, NOT_SHOWN, "takes_phonemes"))
    return tuple(each.lexicon for each in found)


@router.get("", summary="The pronunciation dictionaries of the API key, the newest first.")
async def list_dictionaries(request: Request, state: State, page_size: int = 30, cursor: str = "") -> JSONResponse:
    if not 1 <= page_size <= MAX_PAGE:
        raise InvalidRequest("page_size", page_size, f"must be between 1 and {MAX_PAGE}")
    start = parse_integer("cursor", cursor or "0", "must be the cursor of the previous page")
    end = start + page_size

    def read() -> tuple[list[dict[str, Any]], bool]:
        found = state.dictionaries.owned_by(_owner(request))
        return [_metadata(each) for each in found[start:end]], end < len(found)

    page, has_more = await state.synthesis.in_thread(read)
    return JSONResponse(
        {"pronunciation_dictionaries": page, "next_cursor": str(end) if has_more else None, "has_more": has_more}
    )


@router.post("/add-from-rules", summary="Add a pronunciation dictionary.")
async def add_from_rules(request: Request, body: NewDictionary, state: State) -> JSONResponse:
    return await _add(request, state, body.name, body.description, await _parse(state, body.rules))


@router.get("/{dictionary_id}", summary="A pronunciation dictionary with its rules.")
async def get_dictionary(request: Request, state: State, dictionary_id: str) -> JSONResponse:
    def read() -> dict[str, Any]:
        found = state.dictionaries.get(_owner(request), dictionary_id)
        return {**_metadata(found), "rules": [to_rule(each) for each in found.lexicon.pronunciations]}

    return JSONResponse(await state.synthesis.in_thread(read))


@router.patch("/{dictionary_id}", summary="Rename a pronunciation dictionary, or delete it.")
async def change_dictionary(
    request: Request, state: State, dictionary_id: str, body: DictionaryChanges
) -> JSONResponse:
    owner, name, library = _owner(request), body.name, state.dictionaries

    def change() -> dict[str, Any]:
        found = library.get(owner, dictionary_id)
        if body.archived:
            library.remove(owner, dictionary_id)
        elif name is not None:
            found = library.change(owner, dictionary_id, lambda old: replace(old, name=name))
        return _metadata(found)

    return JSONResponse(await state.synthesis.in_thread(change))


@router.delete("/{dictionary_id}", summary="Delete a pronunciation dictionary.")
async def delete_dictionary(request: Request, state: State, dictionary_id: str) -> JSONResponse:
    await state.synthesis.in_thread(state.dictionaries.remove, _owner(request), dictionary_id)
    return JSONResponse({"status": "ok"})


@router.get("/{dictionary_id}/{version_id}/download", response_class=Response, summary="A version as a PLS file.")
async def download(request: Request, state: State, dictionary_id: str, version_id: str) -> Response:
    found = await state.synthesis.in_thread(state.dictionaries.get, _owner(request), dictionary_id, version_id)
    content = await state.synthesis.in_thread(to_pls, found.lexicon.pronunciations)
    disposition = f'attachment; filename="{found.id}.pls"'
    return Response(content, media_type=PLS_TYPE, headers={"content-disposition": disposition})


@router.post("/{dictionary_id}/add-rules", summary="Add rules; they replace those of equal words.")
async def add_rules(request: Request, state: State, dictionary_id: str, body: RulesRequest) -> JSONResponse:
    new = (await _parse(state, body.rules)).pronunciations

    def edit(old: Dictionary) -> Dictionary:
        return replace(old, lexicon=updated(old.lexicon, new))

    return await _change(request, state, dictionary_id, edit)


@router.post("/{dictionary_id}/set-rules", summary="Replace all rules.")
async def set_rules(request: Request, state: State, dictionary_id: str, body: RulesRequest) -> JSONResponse:
    lexicon = await _parse(state, body.rules)
    return await _change(request, state, dictionary_id, lambda old: replace(old, lexicon=lexicon))


@router.post("/{dictionary_id}/remove-rules", summary="Remove the rules of words.")
async def remove_rules(request: Request, state: State, dictionary_id: str, body: RemovedRules) -> JSONResponse:
    words = set(body.rule_strings)

    def edit(old: Dictionary) -> Dictionary:
        left = [each for each in old.lexicon.pronunciations if each.word not in words]
        return replace(old, lexicon=Lexicon(left))

    return await _change(request, state, dictionary_id, edit)


# Its body is a form, which JSONRoute would not read.
file_router = APIRouter(prefix="/v1/pronunciation-dictionaries")


@file_router.post(
    "/add-from-file",
    openapi_extra={"requestBody": {"required": True, "content": {FORM_TYPE: {"schema": _FORM_SCHEMA}}}},
    summary="Add a pronunciation dictionary from a PLS file.",
)
async def add_from_file(request: Request, state: State) -> JSONResponse:
    check_content_type(request, (FORM_TYPE,))
    body = await read_body(request, state.settings, min(state.settings.max_body_bytes, 2 * MAX_FILE_BYTES))
    fields, files = await parse_form(request, body, state.settings, (FILE_FIELD,))
    lexicon = Lexicon()
    if files:
        try:
            text = files[0].content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidRequest(FILE_FIELD, NOT_SHOWN, f"must be UTF-8: {error}") from None
        lexicon = await state.synthesis.in_thread(lambda: _checked(state, parse_pls(text)))
    return await _add(request, state, fields.get("name", ""), fields.get("description"), lexicon)


def _owner(request: Request) -> str:
    return str(request.scope[LIMITER].caller.key)


async def _add(request: Request, state: AppState, name: str, description: str | None, lexicon: Lexicon) -> JSONResponse:
    def add() -> dict[str, Any]:
        found = state.dictionaries.add(_owner(request), name, description, lexicon)
        return {**_version(found), "name": found.name, "description": found.description, **_times(found)}

    return JSONResponse(await state.synthesis.in_thread(add))


async def _change(
    request: Request, state: AppState, dictionary_id: str, edit: Callable[[Dictionary], Dictionary]
) -> JSONResponse:
    def change() -> dict[str, Any]:
        return _version(state.dictionaries.change(_owner(request), dictionary_id, edit))

    return JSONResponse(await state.synthesis.in_thread(change))


async def _parse(state: AppState, rules: list[dict[str, Any]]) -> Lexicon:
    return await state.synthesis.in_thread(lambda: _checked(state, parse_rules(json.dumps(rules))))


def _checked(state: AppState, lexicon: Lexicon) -> Lexicon:
    """Rejects phonemes that the model would not understand. A model without phonemes ignores them."""
    for each in lexicon.pronunciations:
        if each.phonemes and state.info.takes_phonemes:
            try:
                mark_phonemes(each.word, each.phonemes, each.alphabet)
            except ValueError as error:
                raise InvalidRequest("rules", each.phonemes, str(error)) from None
    return lexicon


def _times(found: Dictionary) -> dict[str, Any]:
    return {"created_by": found.owner or "anonymous", "creation_time_unix": found.created}


def _version(found: Dictionary) -> dict[str, Any]:
    num_rules = len(found.lexicon.pronunciations)
    return {"id": found.id, "version_id": found.version_id, "version_rules_num": num_rules}


def _metadata(found: Dictionary) -> dict[str, Any]:
    return {
        "id": found.id,
        "latest_version_id": found.version_id,
        "latest_version_rules_num": len(found.lexicon.pronunciations),
        "name": found.name,
        "permission_on_resource": "admin",
        "description": found.description,
        **_times(found),
        "archived_time_unix": None,
    }
