"""The view as a user meets it: a real TensorBoard on real event files, in a real headless Chromium."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_files import scalar, write_events
from tensorboard_logs import events_of, recorded, write_recorded
from tensorboard_server import Server, browser, chromium, tensorboard

pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine: apt-get install chromium"),
]

NAMES = ["memorization", "nan-unfiltered", "masked-eval-labels", "lora-lr1e-3", "lora-lr3e-3"]
ODD = ['it\'s "quoted"', "<img src=x onerror=alert(1)>", "größe-模型-🙂", "a b & c?d=e#f%20;+"]
#: Milliseconds to wait for what has to come.
SOON = 15_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("view") / "logs"
    write_recorded(root, NAMES)
    values = [math.nan if 40 < s <= 60 else 2 - s / 200 for s in range(1, 101)]
    write_events(root / "gap", [scalar("train/loss", s, v, s) for s, v in enumerate(values, 1)])
    for name in ODD:
        write_events(root / "odd" / name, [scalar("train/loss", s, 2.0 - s / 100, s) for s in range(10, 60, 10)])
    return root


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Server]:
    with tensorboard("--logdir", logs, "--reload_interval", "1", cwd=logs.parent) as running:
        running.settled()
        yield running


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as found:
        yield found


class Page:
    """TensorBoard's page with our tab in it; fails when anything is logged as an error or asked of another host."""

    def __init__(self, opened: Any, server: Server, width: int = 1280, height: int = 900) -> None:
        self.server = server
        self.page = opened.new_page(viewport={"width": width, "height": height})
        self.errors: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if self.is_error(m) else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "request", lambda r: None if r.url.startswith((server.url, "data:", "blob:")) else self.errors.append(r.url)
        )

    @staticmethod
    def is_error(message: Any) -> bool:
        # a browser asks for an icon where a page names none, and TensorBoard has none for the page in a frame
        return message.type == "error" and not message.location["url"].endswith("/favicon.ico")

    def open(self, run: str | None = None, **choice: Any) -> Page:
        """What is in our frame, alone: TensorBoard's own page takes seconds to load."""
        self.page.goto(self.server.page(run, framed=False, **choice))
        return self.ready()

    def open_framed(self, run: str | None = None, **choice: Any) -> Page:
        """Our tab in TensorBoard."""
        self.page.goto(self.server.page(run, **choice))
        self.page.locator("iframe").wait_for(timeout=SOON)
        return self.ready()

    def reload(self) -> Page:
        self.page.reload()
        return self.ready()

    def ready(self) -> Page:
        where = self.page.frame_locator("iframe") if "plugin_entry" not in self.page.url else self.page
        where.locator(".detail .uplot").first.wait_for(timeout=SOON)
        return self

    @property
    def frame(self) -> Any:
        return next(frame for frame in self.page.frames if "plugin_entry" in frame.url)

    def find(self, selector: str) -> Any:
        return self.frame.locator(selector)

    def until(self, condition: str, argument: Any = None) -> None:
        self.frame.wait_for_function(condition, arg=argument, timeout=SOON)

    def texts(self, selector: str) -> list[str]:
        return list(self.frame.locator(selector).all_text_contents())


@pytest.fixture
def view(opened: Any, server: Server) -> Iterator[Page]:
    page = Page(opened, server)
    yield page
    page.page.close()
    assert page.errors == []


def test_the_tab_is_there_and_lists_the_runs_worst_first(view: Page) -> None:
    view.page.goto(view.server.url)
    view.page.get_by_text("Curve Doctor", exact=False).first.click()
    view.ready()
    names = view.texts(".run .name")
    assert names[:4] == ["memorization", "nan-unfiltered", "gap", "masked-eval-labels"]
    assert names[-2:] == ["lora-lr1e-3", "lora-lr3e-3"]
    assert view.texts(".heading span:first-child") == ["Sick", "Watch", "Inconclusive", "Healthy"]
    first = view.find(".run").first
    assert "eval/loss rose to 4.884" in first.text_content()
    assert view.texts(".chosen .fact") == ["best24", "stop72", "last240"]
    assert view.find("main h1").text_content() == "memorization"
    assert "2 sick, 2 watch, 4 inconclusive, 2 healthy" in view.find(".status").text_content()


def test_marks_lie_at_the_steps_of_their_findings(view: Page) -> None:
    view.open("memorization")
    mark = view.find('.lane[data-severity="error"]')
    assert (mark.get_attribute("data-first"), mark.get_attribute("data-last")) == ("36", "240")
    box = view.find(".panel.main .u-over").bounding_box()
    # the axis goes from the first step to the last, with 1.2 % of air on either side
    low, high = 3 - 0.012 * 237, 240 + 0.012 * 237
    at = {step: box["x"] + box["width"] * (step - low) / (high - low) for step in (36, 240)}
    place = mark.bounding_box()
    assert place["x"] == pytest.approx(at[36], abs=1.5)
    assert place["x"] + place["width"] == pytest.approx(at[240], abs=1.5)


def painted(view: Page, colour: str) -> list[float]:
    """Columns of the main chart in which something has this colour of the style sheet, as shares of the plot's width."""
    script = """(name) => {
      const canvas = document.querySelector(".panel.main canvas");
      const over = document.querySelector(".panel.main .u-over");
      const ratio = canvas.width / canvas.clientWidth;
      const [left, top] = [over.offsetLeft * ratio, over.offsetTop * ratio];
      const [width, height] = [Math.floor(over.clientWidth * ratio), Math.floor(over.clientHeight * ratio)];
      const probe = document.createElement("canvas").getContext("2d");
      probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
      probe.fillRect(0, 0, 1, 1);
      const want = probe.getImageData(0, 0, 1, 1).data;
      const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
      const columns = new Set();
      for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
        const i = 4 * (y * width + x);
        if ([0, 1, 2].every((c) => Math.abs(data[i + c] - want[c]) < 6)) columns.add(x / width);
      }
      return [...columns].sort((a, b) => a - b);
    }"""
    return list(view.frame.evaluate(script, colour))


def test_nan_is_a_gap_with_a_mark_and_no_line_is_drawn_in_it(view: Page) -> None:
    view.open("nan-unfiltered")
    low, high = 2 - 0.012 * 158, 160 + 0.012 * 158
    first = (80 - low) / (high - low)
    crosses, train = painted(view, "--nan"), painted(view, "--train")
    assert crosses
    assert first - 0.02 < min(crosses) < first + 0.02
    assert train
    assert max(train) < first + 0.01
    assert view.texts(".legend .entry b") == ["NaN", "NaN"]
    view.find('.run[data-run="gap"]').click()
    view.until("document.querySelector('main h1').textContent === 'gap'")
    low, high = 1 - 0.012 * 99, 100 + 0.012 * 99
    first, last = ((step - low) / (high - low) for step in (40, 61))
    train = painted(view, "--train")
    assert [x for x in train if first + 0.01 < x < last - 0.01] == []
    assert [x for x in train if x > last]
    assert [x for x in painted(view, "--nan") if first < x < last]
    view.find('.run[data-run="lora-lr1e-3"]').click()
    view.until("document.querySelector('main h1').textContent === 'lora-lr1e-3'")
    view.until("document.querySelectorAll('.lane').length === 0")
    assert painted(view, "--nan") == []


def test_best_checkpoint_and_stop_are_drawn(view: Page) -> None:
    view.open("memorization")
    low, high = 3 - 0.012 * 237, 240 + 0.012 * 237
    best = painted(view, "--best")
    assert min(best, key=lambda x: abs(x - (24 - low) / (high - low))) == pytest.approx((24 - low) / (high - low), abs=0.01)
    text = view.find(".cure").text_content()
    assert "step 24, eval/loss 2.524" in text
    assert "CurveDoctor stops this run at step 72" in text


def test_marks_and_list_are_linked_by_hover_click_and_keyboard(view: Page) -> None:
    view.open("memorization")
    lane, card = view.find(".lane").first, view.find(".finding[data-finding]").first
    lane.hover()
    view.until("document.querySelector('.finding[data-finding]').classList.contains('active')")
    assert "steps 36 to 240: eval/loss rose to 4.884" in view.find(".caption").text_content()
    view.find("main h1").hover()
    view.until("!document.querySelector('.finding.active')")
    card.click()
    assert lane.get_attribute("aria-pressed") == "true"
    view.page.keyboard.press("Escape")
    assert lane.get_attribute("aria-pressed") == "false"
    view.find("main h1").click()
    card.focus()
    view.until("document.querySelector('.lane').classList.contains('active')")
    view.page.keyboard.press("Enter")
    assert lane.get_attribute("aria-pressed") == "true"
    view.page.keyboard.press("z")
    view.find(".reset:visible").wait_for()
    view.page.keyboard.press("Escape")
    view.page.keyboard.press("Escape")
    view.find(".reset").wait_for(state="hidden")
    view.find(".why").first.click()
    view.until("(document.querySelector('.explanation')?.textContent ?? '').includes('When it is wrong')")


def test_the_list_is_used_without_a_mouse(view: Page) -> None:
    view.open("memorization")
    view.find("main h1").click()
    view.page.keyboard.press("/")
    assert view.frame.evaluate("document.activeElement.id") == "search"
    view.page.keyboard.type("lora")
    assert view.texts(".run .name") == ["lora-lr1e-3", "lora-lr3e-3"]
    assert view.find(".count").text_content() == "2 of 10"
    view.page.keyboard.press("ArrowDown")
    view.page.keyboard.press("ArrowDown")
    view.until("document.querySelector('main h1').textContent === 'lora-lr3e-3'")
    view.page.keyboard.press("ArrowUp")
    view.until("document.querySelector('main h1').textContent === 'lora-lr1e-3'")
    assert "p.curve_doctor.run=lora-lr1e-3" in view.page.url
    view.find("#search").press("Escape")
    assert len(view.texts(".run .name")) == 10


def test_the_url_keeps_the_choice(view: Page) -> None:
    view.open_framed("nan-unfiltered", axis="epoch", compare="memorization")
    assert view.find("main h1").text_content() == "nan-unfiltered"
    assert view.find('.segments button[aria-pressed="true"]').first.text_content() == "Epoch"
    assert view.texts(".chip .label") == ["nan-unfiltered", "memorization"]
    view.reload()
    assert view.find("main h1").text_content() == "nan-unfiltered"
    assert view.find(".chosen .name").text_content() == "nan-unfiltered"


def test_runs_are_laid_over_each_other(view: Page) -> None:
    view.open("lora-lr1e-3")
    other = view.find('li:has(> .run[data-run="lora-lr3e-3"])')
    other.hover()
    other.locator(".compare").click()
    view.until("document.querySelectorAll('.legend .entry').length === 4")
    labels = view.texts(".legend .label")
    assert labels == [f"{run} · {side}/loss" for run in ("lora-lr1e-3", "lora-lr3e-3") for side in ("train", "eval")]
    assert "p.curve_doctor.compare=lora-lr3e-3" in view.page.url
    view.find(".chip button").click()
    view.until("document.querySelectorAll('.legend .entry').length === 2")


def test_axes_scale_and_smoothing(view: Page) -> None:
    view.open("memorization")
    for axis in ("Epoch", "Time", "Step"):
        view.find(f'.segments button:text-is("{axis}")').click()
        view.until("(axis) => document.querySelector('.segments button[aria-pressed=\"true\"]').textContent === axis", axis)
    view.find('.segments button:text-is("Log")').click()
    assert view.find('.segments button:text-is("Log")').get_attribute("aria-pressed") == "true"
    assert view.find(".smoothing output").text_content() == "off"
    view.find(".smoothing input").fill("0.9")
    view.until("document.querySelector('.smoothing output').textContent === '0.90'")
    view.until("document.querySelector('.legend .entry b').textContent !== '0.02115'")


def test_the_cure_is_a_snippet_that_can_be_copied(view: Page) -> None:
    view.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view.open("memorization")
    view.find(".copy").click()
    view.until("document.querySelector('.copy').textContent === 'Copied'")
    assert "num_train_epochs=8" in view.frame.evaluate("navigator.clipboard.readText()")


def test_it_follows_tensorboards_theme(view: Page) -> None:
    surface = "getComputedStyle(document.body).backgroundColor"
    view.open_framed("memorization")
    assert view.frame.evaluate("document.documentElement.dataset.theme") == "light"
    light = view.frame.evaluate(surface)
    inks = painted(view, "--train")
    # as TensorBoard's own switch does it
    view.page.evaluate("document.body.classList.add('dark-mode')")
    view.until("document.documentElement.dataset.theme === 'dark'")
    assert view.frame.evaluate(surface) != light
    assert inks
    assert painted(view, "--train")
    view.open_framed("memorization", dark=True)
    assert view.frame.evaluate("document.documentElement.dataset.theme") == "dark"


def test_odd_names_are_text(view: Page) -> None:
    view.open("lora-lr1e-3")
    for name in ODD:
        view.frame.evaluate('(key) => document.querySelector(`.run[data-run="${CSS.escape(key)}"]`).click()', f"odd/{name}")
        view.until("(name) => document.querySelector('main h1').textContent === name", f"odd/{name}")
        view.reload()
        assert view.find("main h1").text_content() == f"odd/{name}"


@pytest.mark.parametrize("width", [1000, 1600])
def test_nothing_is_cut_off_or_laid_over_at_any_width(opened: Any, server: Server, width: int) -> None:
    page = Page(opened, server, width=width).open("memorization", compare="nan-unfiltered")
    for selector in ("html", ".detail", ".list"):
        needed, there = page.frame.evaluate(
            "(s) => ['scrollWidth', 'clientWidth'].map((k) => document.querySelector(s)[k])", selector
        )
        assert needed <= there, selector
    page.page.close()
    assert page.errors == []


def test_it_follows_a_log_that_grows_without_a_new_drawing(opened: Any, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    run = recorded("memorization")
    path = write_events(logs / "growing", events_of(run, until=33))
    write_recorded(logs, ["lora-lr1e-3"])
    with tensorboard("--logdir", logs, "--reload_interval", "1", cwd=tmp_path) as server:
        view = Page(opened, server).open_framed("growing")
        view.until("document.querySelector('.about').textContent.includes('last step 33')")
        assert view.texts(".lane") == []
        box = view.find(".panel.main .u-over").bounding_box()
        view.page.mouse.move(box["x"] + 40, box["y"] + 80)
        view.page.mouse.down()
        view.page.mouse.move(box["x"] + 240, box["y"] + 90, steps=4)
        view.page.mouse.up()
        view.find(".reset:visible").wait_for()
        # what is there now has to be there afterwards
        view.frame.evaluate("for (const n of document.querySelectorAll('canvas, .run, main h1')) n.kept = true")
        more = write_events(tmp_path / "more", events_of(run, after=33))
        with path.open("ab") as file:
            file.write(more.read_bytes())
        shutil.rmtree(more.parent)
        view.until("document.querySelector('.about').textContent.includes('last step 240')")
        assert view.find(".verdict").text_content() == "SICK"
        assert view.find(".chosen .name").text_content() == "growing"
        assert view.frame.evaluate("[...document.querySelectorAll('canvas, .run, main h1')].every((n) => n.kept)")
        assert view.find(".reset").is_visible()
        assert view.texts(".run .name") == ["growing", "lora-lr1e-3"]
        view.find(".reset").click()
        view.until("document.querySelector('.lane')?.dataset.first === '36'")
        assert view.errors == []
        view.page.close()


def test_an_error_of_the_server_is_shown_in_the_tab(view: Page) -> None:
    view.open("memorization")
    view.page.route(
        "**/curve_doctor/runs*", lambda route: route.fulfill(status=500, json={"error": "a bug", "traceback": "deep"})
    )
    view.find(".banner:visible").wait_for(timeout=SOON)
    assert "a bug" in view.find(".banner").text_content()
    view.page.unroute("**/curve_doctor/runs*")
    view.find(".banner").wait_for(state="hidden", timeout=SOON)
    view.errors.clear()  # the browser itself logs an answer of 500
