# SPDX-License-Identifier: Apache-2.0
"""Take the documentation's screenshots of the playground: screenshots.py http://127.0.0.1:8000 docs/playground.

The server needs an LLM, such as `python -m server.scripted_llm TEXT`, and the URL of an STT, which is not used.
"""

import re
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

ARGUMENTS = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
WAIT_MS = 120_000
DESKTOP, PHONE = {"width": 1180, "height": 760}, {"width": 390, "height": 800}


def open_page(browser: Browser, address: str, size: dict[str, int], scheme: str) -> Page:
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto(address)
    page.wait_for_selector("#playground:not([hidden])")
    return page


def wait_for_word(page: Page, words: str) -> None:
    """Wait until one of the words is marked."""
    expect(page.locator("#text-highlight mark")).to_have_text(re.compile(words), timeout=WAIT_MS)


def show_conversation(page: Page, path: Path) -> None:
    """An answer that was interrupted, and the next one while it is spoken."""
    page.get_by_role("link", name="Conversation").click()
    word = page.locator(".message mark[data-kind=word]")
    page.fill("#message", "What do you see from the lighthouse?")
    page.keyboard.press("Enter")
    expect(word).to_have_text(re.compile("fishing|boats"), timeout=WAIT_MS)
    page.fill("#message", "Sorry, once more please.")
    page.keyboard.press("Enter")
    expect(word).to_have_text(re.compile("harbour|fishing"), timeout=WAIT_MS)
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=path)


def main(address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        desktop = open_page(browser, address, DESKTOP, "light")
        desktop.get_by_role("button", name="A story").click()
        desktop.click("#speak")
        desktop.wait_for_selector("#player[data-playback=ended]", timeout=WAIT_MS)
        desktop.click("#play")
        wait_for_word(desktop, "evening|autumn|light")
        desktop.locator("body").click(position={"x": 5, "y": 5})
        desktop.screenshot(path=folder / "desktop.png")
        desktop.get_by_role("link", name="Measure").click()
        desktop.locator("#load-size").fill("6")
        desktop.click("#load-start")
        desktop.wait_for_selector("#load-stop:disabled", timeout=WAIT_MS)
        desktop.screenshot(path=folder / "measure.png", full_page=True)
        phone = open_page(browser, address, PHONE, "dark")
        phone.get_by_role("radio", name="Live").check()
        phone.get_by_role("button", name="A greeting").click()
        wait_for_word(phone, "lovely|hear|from|How|did")
        phone.screenshot(path=folder / "phone.png")
        show_conversation(open_page(browser, address, DESKTOP, "light"), folder / "conversation.png")
        show_conversation(open_page(browser, address, PHONE, "dark"), folder / "conversation-phone.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
