# SPDX-License-Identifier: Apache-2.0
"""Take the documentation's screenshots of the playground: screenshots.py http://127.0.0.1:8000 docs/playground."""

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
WAIT_MS = 120_000
PLAYED_MS = 2_500  # of the story, before the phone screenshot


def open_page(browser: Browser, address: str, width: int, height: int, scheme: str) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_selector("#playground:not([hidden])")
    page.get_by_role("button", name="A story").click()
    return page


def main(address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        desktop = open_page(browser, address, 1000, 800, "light")
        desktop.click("#speak")
        desktop.wait_for_selector("#playback[data-state=finished]", timeout=WAIT_MS)
        desktop.get_by_role("button", name="A greeting").click()
        desktop.locator("#load-size").fill("6")
        desktop.click("#load-start")
        desktop.wait_for_selector("#load-status:has-text('finished')", timeout=WAIT_MS)
        desktop.screenshot(path=folder / "desktop.png", full_page=True)
        phone = open_page(browser, address, 390, 844, "dark")
        phone.click("#speak")
        phone.wait_for_selector("#playback[data-state=streaming]", timeout=WAIT_MS)
        phone.wait_for_timeout(PLAYED_MS)
        phone.screenshot(path=folder / "phone.png", full_page=True, clip={"x": 0, "y": 0, "width": 390, "height": 1300})
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
