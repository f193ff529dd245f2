# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' endpoints for the account and its history. The server has no accounts and stores no speech."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from polyvox.server.app_state import AppState, State
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.responses import APIError

router = APIRouter()

UNLIMITED = 2**31 - 1  # SDKs require a number


@router.get("/v1/user", summary="The caller in ElevenLabs' format: a name of the API key that does not reveal it.")
async def get_user(request: Request, state: State) -> JSONResponse:
    return JSONResponse(
        {
            "user_id": request.scope[LIMITER].caller.key or "anonymous",
            "workspace_id": "polyvox",
            "subscription": await _subscription(state),
            "is_new_user": False,
            "can_use_delayed_payment_methods": False,
            "is_onboarding_completed": True,
            "is_onboarding_checklist_completed": True,
            "created_at": 0,
        }
    )


@router.get(
    "/v1/user/subscription", summary="The limits of the server in ElevenLabs' format. Characters are not counted."
)
async def get_subscription(state: State) -> JSONResponse:
    return JSONResponse(await _subscription(state))


@router.get("/v1/history", summary="An empty list: speech is not stored.")
async def list_history() -> JSONResponse:
    return JSONResponse({"history": [], "last_history_item_id": None, "has_more": False})


@router.get("/v1/history/{history_item_id}", summary="Always 404: speech is not stored.")
@router.get("/v1/history/{history_item_id}/audio", summary="Always 404: speech is not stored.")
@router.delete("/v1/history/{history_item_id}", summary="Always 404: speech is not stored.")
async def get_history_item(history_item_id: str) -> JSONResponse:
    message = f"Unknown history item '{history_item_id[:80]}'. The server stores no speech."
    raise APIError(404, "not_found", message, "history_item_id")


async def _subscription(state: AppState) -> dict[str, Any]:
    num_cloned = len(await state.synthesis.in_thread(state.voices.library_voices))
    return {
        "tier": "self-hosted",
        "character_count": 0,
        "character_limit": UNLIMITED,
        "max_credit_limit_extension": 0,
        "can_extend_character_limit": False,
        "allowed_to_extend_character_limit": False,
        "voice_slots_used": num_cloned,
        "voice_limit": UNLIMITED if state.info.can_clone else 0,
        "voice_add_edit_counter": 0,
        "professional_voice_slots_used": 0,
        "professional_voice_slots_used_in_workspace": 0,
        "professional_voice_limit": 0,
        "can_extend_voice_limit": False,
        "can_use_instant_voice_cloning": state.info.can_clone,
        "can_use_professional_voice_cloning": False,
        "current_overage": {"amount": "0", "currency": "usd"},
        "status": "active",
    }
