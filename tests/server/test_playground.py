# SPDX-License-Identifier: Apache-2.0
"""The playground's page: its files, what they may load, and what it is body of the loaded checkpoint."""

import re
import subprocess
import sys
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ipc.fake_engine import ABOUT, SLOTS
from polyvox.models.info import ModelInfo
from polyvox.server.api.playground import assets
from polyvox.server.reference_page import PAGE
from polyvox.server.settings import Settings
from server.fakes import CUSTOM, DESIGN, PausableEngine
from server.live_server import RunningServer, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WEB = ROOT / "src/polyvox/server/web"


def linked() -> set[str]:
    """The files that the page's files, and the page at /docs, name."""
    names = set(re.findall(r'(?:src|href)="web/([^"]+)"', (WEB / "index.html").read_text() + PAGE))
    for script in WEB.glob("*.js"):
        names |= set(re.findall(r'from "\./([^"]+)"', script.read_text()))
        names |= set(re.findall(r'new URL\("([^"]+)", import', script.read_text()))
    return names


def test_every_file_of_the_page_is_served_and_referenced(server: RunningServer) -> None:
    assert linked() | {"index.html"} == {file.name for file in WEB.iterdir()} == set(assets())
    with server.client() as client:
        assert client.get("/").content == (WEB / "index.html").read_bytes()
        for name in sorted(linked()):
            answer = client.get(f"/web/{name}")
            assert answer.content == (WEB / name).read_bytes()
            kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[Path(name).suffix]
            assert answer.headers["content-type"].startswith(kind)
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py", "../page.py", "a/b.js"])
def test_other_paths_below_web_are_not_found(server: RunningServer, name: str) -> None:
    with server.client() as client:
        assert client.get(f"/web/{name}").status_code == 404


def test_the_page_loads_nothing_from_other_servers(server: RunningServer) -> None:
    with server.client() as client:
        policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:|\*", policy)
    for file in WEB.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[\"'(]//", text), file.name
    page = (WEB / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page), "the policy forbids what is inline"


def test_a_cached_file_is_revalidated(server: RunningServer) -> None:
    with server.client() as client:
        first = client.get("/web/main.js")
        assert first.headers["cache-control"] == "no-cache"
        again = client.get("/web/main.js", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get("/web/main.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_the_page_works_below_a_path_prefix(engine: PausableEngine) -> None:
    for file in (WEB / "index.html", *WEB.glob("*.js")):
        assert not re.search(r'(?:src|href)="/|fetch\("/|call\([`"]/', file.read_text()), file.name
    with serving(engine, Settings(root_path="/voice")) as server, server.client(follow_redirects=True) as client:
        for path in ("/", "/web/main.js", "/v1/playground"):
            assert client.get(path).status_code == 200


def test_the_page_shows_the_engines_slots_by_default() -> None:
    engine = PausableEngine()
    try:
        with serving(engine, Settings()) as server, server.client() as client:
            assert client.get("/v1/playground").json()["limits"]["streams"] == SLOTS
    finally:
        engine.close()


@pytest.mark.parametrize("about", [CUSTOM, DESIGN, replace(ABOUT, languages=("auto", "english", "german"))])
def test_the_page_shows_the_capabilities_of_the_model(about: ModelInfo) -> None:
    with (
        closing(PausableEngine(about)) as engine,
        serving(engine, Settings(max_text_chars=70)) as server,
        server.client() as client,
    ):
        body = client.get("/v1/playground").json()
    assert body["model"]["designs_voices"] == about.designs_voices
    assert body["model"]["takes_instructions"] == about.takes_instructions
    assert body["model"]["can_clone"] == about.can_clone
    assert body["model"]["languages"] == list(about.languages)
    assert body["model"]["sample_rate"] == 24_000
    assert [voice["name"] for voice in body["voices"]] == list(about.voices)
    assert {"name": "mp3", "ending": ".mp3", "media_type": "audio/mpeg"} in body["formats"]
    assert (body["limits"]["text"], body["limits"]["streams"], body["needs_key"]) == (70, SLOTS, False)


@pytest.mark.parametrize(
    ("settings", "takes_conversations", "expected"),
    [
        (Settings(), False, (False, False, False)),
        (Settings(llm="http://127.0.0.1:9/v1"), False, (True, False, False)),
        (Settings(llm="http://127.0.0.1:9/v1", stt="http://127.0.0.1:9/v1"), False, (True, True, True)),
        (Settings(llm="http://127.0.0.1:9/v1"), True, (True, True, False)),
    ],
    ids=["no LLM", "LLM", "LLM and STT", "LLM that hears"],
)
def test_the_page_learns_how_a_conversation_is_possible(
    settings: Settings, takes_conversations: bool, expected: tuple[bool, bool, bool]
) -> None:
    about = replace(CUSTOM, takes_conversations=takes_conversations)
    with closing(PausableEngine(about)) as engine, serving(engine, settings) as server, server.client() as client:
        body = client.get("/v1/playground").json()["conversation"]
    assert (body["llm"], body["takes_speech"], body["transcribes"]) == expected


def test_the_page_needs_no_key_but_its_data_does(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["secret"])) as server, server.client() as client:
        assert client.get("/").status_code == 200
        assert client.get("/web/main.js").status_code == 200
        assert client.get("/v1/playground").status_code == 401
        assert client.get("/web/../v1/playground").status_code == 401
        body = client.get("/v1/playground", headers={"authorization": "Bearer secret"}).json()
        assert body["needs_key"] is True
        assert "secret" not in str(body)


def test_the_page_is_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"polyvox/server/web/{name}" for name in assets()} <= set(names)
