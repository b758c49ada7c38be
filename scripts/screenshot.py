"""Take a picture of an HTML file with headless Chromium: the report's picture in the README.

python scripts/screenshot.py runs/demo/report.html docs/report.png [--width 1366] [--height 768]
"""

import argparse
import shutil
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Path of a Chromium on this machine, None when there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1366)
    parser.add_argument("--height", type=int, default=768)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--full", action="store_true", help="the whole page, not the first screen")
    wanted = parser.parse_args()
    browser_path = find_browser()
    if browser_path is None:
        print("no chromium found; install it (apt-get install chromium)", file=sys.stderr)
        return 1
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  only needed here
    except ModuleNotFoundError:
        print("playwright is not installed: `make .venv/.dev` installs it", file=sys.stderr)
        return 1

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(
            viewport={"width": wanted.width, "height": wanted.height},
            device_scale_factor=wanted.scale,
            color_scheme="dark" if wanted.dark else "light",
        )
        page.goto(wanted.page.resolve().as_uri())
        page.wait_for_selector("html[data-ready=true]", state="attached", timeout=30_000)
        wanted.picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(wanted.picture), full_page=wanted.full)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
