"""Drives a headless chromium over its debugging pipe: pages of any size, light and dark, what they
said and asked.
"""

import base64
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import PATIENT_S


class Refused(AssertionError):
    """The browser did not do what it was told, or a script failed."""


class Browser:
    """A chromium process; commands of the DevTools protocol, JSON between zero bytes on descriptors
    3 and 4.
    """

    def __init__(self, chromium: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()

        def descriptors() -> None:
            # Copies first: one of the ends may itself be 3 or 4.
            ends = os.dup(commands), os.dup(answers)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
        ]
        command += [
            "--disable-background-networking",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command,
            preexec_fn=descriptors,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        os.set_blocking(self._answers, False)
        self._pending = b""
        self._number = 0
        self.pages: dict[str, Page] = {}

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to a command; events that come before it go to their pages."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + PATIENT_S
        while time.monotonic() < limit:
            for told in self.read():
                if told.get("id") == number:
                    if "error" in told:
                        raise Refused(f"{method}: {told['error']['message']}")
                    found: dict[str, Any] = told["result"]
                    return found
        raise TimeoutError(f"chromium did not answer {method}")

    def read(self) -> Iterator[dict[str, Any]]:
        """What has come, one message after the other."""
        while b"\0" not in self._pending:
            try:
                part = os.read(self._answers, 1 << 20)
                assert part, "chromium has ended"
                self._pending += part
            except BlockingIOError:
                time.sleep(0.005)
                return
        while b"\0" in self._pending:
            line, _, self._pending = self._pending.partition(b"\0")
            told = json.loads(line)
            page = self.pages.get(told.get("sessionId", ""))
            if page is not None and "method" in told:
                page.events.append(told)
            yield told

    @contextlib.contextmanager
    def page(
        self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False
    ) -> Iterator["Page"]:
        """A page of this size, drawn."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.send("Emulation.setDeviceMetricsOverride", **size)
        page.set_media(dark=dark)
        page.open(path.as_uri())
        try:
            yield page
        finally:
            self.send("Target.closeTarget", targetId=target)
            del self.pages[session]

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=PATIENT_S)
        os.close(self._commands)
        os.close(self._answers)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command about this tab."""
        return self.browser.send(method, self.session, **params)

    def set_media(self, *, dark: bool = False, media: str = "") -> None:
        """What the page is told about its reader: a dark system, a printer."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, url: str) -> None:
        """Go there and wait until it is loaded and its figures are drawn."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.wait(
            "!document.querySelector('figure') || document.documentElement.dataset.drawn !== "
            "undefined"
        )

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        told = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise Refused(
                f"{script}: {told['exceptionDetails'].get('exception', {}).get('description')}"
            )
        return told["result"].get("value")

    def wait(self, condition: str, limit: float = PATIENT_S) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + limit
        while True:
            with contextlib.suppress(Refused):  # between two pages there is nothing to ask
                if self.evaluate(f"Boolean({condition})"):
                    return
            assert time.monotonic() < end, f"still not: {condition}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A click with the mouse in the middle of an element."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{find}.scrollIntoView({{block: 'center'}})")
        box = self.evaluate(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({find}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key of the keyboard, by its name and number."""
        told = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send(
            "Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {})
        )
        self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    @property
    def complaints(self) -> list[str]:
        """What it put on the console as a warning or worse, and its uncaught exceptions."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in (
                "error",
                "warning",
                "assert",
            ):
                found.append(
                    " ".join(str(a.get("value", a.get("description"))) for a in params["args"])
                )
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in (
                "error",
                "warning",
            ):
                found.append(params["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """What it asked for, itself and what is inside it left out."""
        asked = [
            e["params"]["request"]["url"]
            for e in self.events
            if e["method"] == "Network.requestWillBeSent"
        ]
        own = self.evaluate("location.href.split('#')[0]")
        return [
            url
            for url in asked
            if url.split("#")[0] != own and not url.startswith(("data:", "blob:"))
        ]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, or all of the page, as PNG."""
        told = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(told["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "scale": 1}}

    def pdf(self, path: Path) -> None:
        """The page as it prints."""
        told = self.send("Page.printToPDF", preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(told["data"]))
