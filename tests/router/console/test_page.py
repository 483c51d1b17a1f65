"""The console's page in a real Chromium, before a made-up fleet."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from fakes.browser import chromium, live, needs_chromium, visited
from fakes.console import MadeUpFleet
from fakes.console_app import ConsoleApp, served
from fakes.console_pages import PageAnswers
from playwright.async_api import Browser, Locator, Page, expect

from router.console import Conditions

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

MARKUP = '"><img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


class Visit:
    """One page before one fleet."""

    def __init__(self, browser: Browser, stack: AsyncExitStack) -> None:
        self.browser = browser
        self.stack = stack

    async def __call__(
        self, fleet: MadeUpFleet | int = 8, *, samples: int = 3, app: ConsoleApp | None = None, **how: Any
    ) -> tuple[ConsoleApp, Page]:
        app = app or ConsoleApp(MadeUpFleet(fleet) if isinstance(fleet, int) else fleet)
        await app.lived(samples)
        await self.stack.enter_async_context(served(app))
        page = await self.stack.enter_async_context(visited(self.browser, app.url, **how))
        if not app.token:
            await live(page)
        return app, page


@pytest_asyncio.fixture(loop_scope="module")
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    async with AsyncExitStack() as stack:
        yield Visit(browser, stack)


def cell(page: Page, worker_id: str) -> Locator:
    escaped = re.escape(worker_id).replace("/", "\\/")  # locators parse it as a pattern of JavaScript
    return page.get_by_role("button", name=re.compile(rf"^{escaped},"))


async def agreeable(page: Page) -> None:
    """Axe finds nothing, by WCAG 2.2 AA."""
    tags = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
    found = await Axe().run(page, options={"runOnly": {"type": "tag", "values": tags}})
    assert found.violations_count == 0, found.generate_report()


# Views.


async def test_a_fleet_is_shown_with_load_and_cache_of_each_worker(visit: Visit) -> None:
    fleet = MadeUpFleet(8, moving=0)
    app, page = await visit(fleet)

    await expect(page.locator("#map .cell")).to_have_count(8)
    load = fleet.loads(fleet.facts())[2]
    await expect(cell(page, fleet.workers[2].id)).to_contain_text(f"cache {load.held_percent} %")
    await expect(cell(page, fleet.workers[2].id)).to_contain_text(f"{load.inflight} in flight")
    await expect(page.locator("#workers-sum")).to_contain_text("8 of 8 healthy")
    await expect(page.locator("#replica")).to_have_text("gateway-1")
    for title in ("Hit rate", "TTFT", "TPOT", "Output", "Requests", "Errors", "Queue", "In flight"):
        chart = page.get_by_role("img", name=re.compile(rf"^{title},.*last ten minutes: .*now "))
        await expect(chart).to_be_visible()
    await expect(page.get_by_role("table", name="Length buckets").get_by_role("row")).to_have_count(4)
    await expect(page.get_by_role("table", name="Links between sites")).to_contain_text(
        "65 Gbit/s of 80 Gbit/s"
    )
    await expect(page.get_by_role("table", name="Replicas of this gateway")).to_contain_text("gateway-2")
    await expect(page.locator("#troubles")).to_be_empty()
    assert app.stream.listeners == 1


async def test_decisions_stream_in_with_their_reasons_and_can_be_paused(visit: Visit) -> None:
    app, page = await visit()
    first = page.locator("#decisions li").first
    await expect(first).to_contain_text("tokens cached")
    await expect(first).to_contain_text(re.compile("affinity|balanced|cold|spilled up"))

    await page.get_by_role("button", name="Pause").click()
    shown, made = await first.text_content(), app.fleet.made
    await expect(page.locator("#decisions-sum")).to_contain_text("standing still")
    await page.wait_for_function(
        "n => parseInt(document.querySelector('#decisions-sum').textContent) > n", arg=made
    )
    assert await first.text_content() == shown

    await page.get_by_role("button", name="Go on").click()
    await page.mouse.move(0, 0)
    await expect(first).not_to_have_text(shown or "")


async def test_a_decision_says_why(visit: Visit) -> None:
    _, page = await visit()
    await page.get_by_role("button", name="Pause").click()
    await page.locator("#decisions button").first.click()

    panel = page.get_by_role("complementary", name=re.compile("^Decision req-"))
    await expect(panel).to_contain_text(
        "is the policy's choice, and has the longest start of the prompt cached."
    )


async def test_an_empty_fleet_says_what_to_do(visit: Visit) -> None:
    _, page = await visit(0, samples=0)

    await expect(page.locator("#map-empty")).to_contain_text("No worker is known yet. Add one")
    await expect(page.locator("#troubles")).to_contain_text(
        "Every request is refused until a worker is added."
    )
    await expect(page.locator("#buckets")).to_be_hidden()  # the page hides unused parts
    await expect(page.locator("#links")).to_be_hidden()
    await expect(page.get_by_role("link", name="Tenants")).to_be_hidden()
    await expect(page.get_by_role("img", name="Hit rate: nothing was measured yet.")).to_be_visible()


async def test_degraded_states_come_and_go_in_plain_words(visit: Visit) -> None:
    app, page = await visit()
    box = page.locator("#troubles")
    assert await box.get_attribute("aria-live") == "polite"

    app.fleet.trouble = Conditions(redis="connection refused")
    app.fleet.change(2, state="unhealthy")
    await expect(box).to_contain_text("Replicas do not share their state: connection refused.")
    await expect(box).to_contain_text("1 of 8 workers does not answer health checks: 10.0.0.3:30000.")
    await expect(box).to_contain_text("Requests are served")

    app.fleet.trouble = Conditions()
    app.fleet.change(2, state="healthy")
    await expect(box).to_be_empty()


async def test_a_state_is_told_by_a_sign_and_a_word_and_not_by_colour_alone(visit: Visit) -> None:
    fleet = MadeUpFleet(60)
    for number, fields in enumerate(({"state": "unhealthy"}, {"state": "draining"}, {"circuit": "open"})):
        fleet.change(number, **fields)
    _, page = await visit(fleet)

    for number, (sign, word) in enumerate((("✕", "unhealthy"), ("↓", "draining"), ("!", "ejected"))):
        there = cell(page, fleet.workers[number].id)
        await expect(there).to_have_text(sign)
        await expect(there).to_have_accessible_name(re.compile(word))


async def test_a_thousand_workers_are_one_map_that_can_be_searched(visit: Visit) -> None:
    app, page = await visit(1000)
    await expect(page.locator("#map .cell")).to_have_count(1000)

    await page.get_by_label("Filter").fill("10.0.4 256k")
    await expect(page.locator("#map .cell")).to_have_count(200)
    await page.get_by_label("Filter").fill("10.0.4.77")
    await expect(page.locator("#map .cell")).to_have_count(1)
    await page.get_by_label("Filter").fill("nowhere")
    await expect(page.locator("#map-empty")).to_have_text("No worker fits the filter.")
    await page.get_by_label("Filter").fill("")

    app.fleet.change(500, state="draining")
    await page.get_by_role("button", name="draining 1").click()
    await expect(page.locator("#map .cell")).to_have_count(1)
    await expect(page.get_by_role("button", name="draining 1")).to_have_attribute("aria-pressed", "true")


async def test_workers_are_grouped_and_sorted_as_asked(visit: Visit) -> None:
    fleet = MadeUpFleet(8, moving=0, sites=3)
    _, page = await visit(fleet)
    await page.get_by_label("Group by").select_option("site")
    assert await page.locator("#map h3").all_inner_texts() == [
        "far 2 workers",
        "here 3 workers",
        "there 3 workers",
    ]

    await page.get_by_label("Group by").select_option("")
    await page.get_by_label("Sort by").select_option("backlog_s")
    names = await page.locator("#map .cell .name").all_inner_texts()
    loads = {load.key: load.backlog_s for load in fleet.loads(fleet.facts())}
    assert names == [each.id for each in sorted(fleet.workers, key=lambda each: -loads[each.key])]


# Actions.


async def test_a_worker_is_drained_after_a_confirmation_and_put_back(visit: Visit) -> None:
    app, page = await visit()
    worker = app.fleet.workers[0]
    await cell(page, worker.id).click()
    panel = page.get_by_role("complementary", name=worker.id)
    await expect(panel).to_contain_text("worker_class=h200")

    await panel.get_by_role("button", name="Drain …").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("3 healthy workers of the same kind take over")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(dialog).to_be_hidden()
    assert app.changes == []

    await panel.get_by_role("button", name="Drain …").click()
    await dialog.get_by_role("button", name="Drain it").click()
    await expect(panel.get_by_role("progressbar")).to_be_visible()
    await expect(panel).to_contain_text("It takes no new requests.")
    assert app.changes == [("drain", worker.id, None)]

    await panel.get_by_role("button", name="Put back in service …").click()
    await dialog.get_by_role("button", name="Put it back").click()
    await expect(panel.get_by_role("button", name="Drain …")).to_be_visible()
    assert app.changes[1:] == [("undrain", worker.id, None)]


async def test_a_change_that_is_refused_says_why_and_can_be_tried_again(visit: Visit) -> None:
    app, page = await visit()
    app.refuse = (403, "night shift may only read; this needs a token with the role write.")
    await cell(page, app.fleet.workers[0].id).click()
    await page.get_by_role("button", name="Drain …").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Drain it").click()

    await expect(dialog.get_by_role("alert")).to_have_text(
        "night shift may only read; this needs a token with the role write."
    )
    await dialog.get_by_role("button", name="Drain it").click()
    await expect(dialog).to_be_hidden()
    assert len(app.changes) == 1


async def test_the_last_worker_of_its_kind_is_not_drained_without_a_warning(visit: Visit) -> None:
    app, page = await visit(1)
    await cell(page, app.fleet.workers[0].id).click()
    await page.get_by_role("button", name="Drain …").click()

    await expect(page.get_by_role("dialog")).to_contain_text(
        "No other healthy worker of the same kind is left"
    )


async def test_the_policy_is_switched_after_a_confirmation(visit: Visit) -> None:
    app, page = await visit()
    await expect(page.locator("#policy")).to_contain_text("expected_cost")
    await page.get_by_role("button", name="Switch policy …").click()
    dialog = page.get_by_role("dialog", name="Switch the policy?")
    await expect(dialog).to_contain_text("Lowest cost for this request and those behind it.")

    await dialog.get_by_label("Policy").select_option("round_robin")
    await expect(dialog).to_contain_text("One after the other. It ignores cached blocks.")
    await dialog.get_by_label("Why").fill("compare")
    await dialog.get_by_role("button", name="Switch").click()

    await expect(page.locator("#policy")).to_contain_text("round_robin")
    said = {"values": {"placement.policy": "round_robin"}, "comment": "compare"}
    assert app.changes == [("settings", "placement.policy", said)]


async def test_everything_is_reached_by_keyboard_and_the_focus_comes_back(visit: Visit) -> None:
    app, page = await visit(60)
    await page.get_by_label("Sort by").focus()
    await page.keyboard.press("Tab")
    await expect(cell(page, app.fleet.workers[0].id)).to_be_focused()

    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowLeft")
    await expect(cell(page, app.fleet.workers[1].id)).to_be_focused()
    await page.keyboard.press("ArrowDown")
    assert await page.evaluate("document.activeElement.getBoundingClientRect().left") == await cell(
        page, app.fleet.workers[1].id
    ).evaluate("cell => cell.getBoundingClientRect().left")
    await page.keyboard.press("End")
    await expect(cell(page, app.fleet.workers[59].id)).to_be_focused()
    await page.keyboard.press("Home")

    await page.keyboard.press("Enter")
    await expect(page.locator("#inspector-title")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator("#inspector")).to_be_hidden()
    await expect(cell(page, app.fleet.workers[0].id)).to_be_focused()
    # Only one cell of the map is in the order of Tab.
    assert await page.locator("#map .cell[tabindex='0']").count() == 1


async def test_the_focus_stays_on_a_worker_while_its_figures_change(visit: Visit) -> None:
    app, page = await visit()
    there = cell(page, app.fleet.workers[3].id)
    await there.focus()
    before = await there.inner_text()
    await expect(there).not_to_have_text(before)
    app.fleet.change(0, state="draining")  # draws the map again
    await expect(cell(page, app.fleet.workers[0].id)).to_have_accessible_name(re.compile("draining"))

    await expect(there).to_be_focused()


# The connection.


async def test_a_stream_that_is_lost_is_said_and_comes_back_by_itself(visit: Visit) -> None:
    app, page = await visit()
    app.ending = True
    await expect(page.locator("#live")).to_have_text("Not live")
    await expect(page.locator("#troubles")).to_contain_text("The stream is lost (this replica ends).")
    await expect(page.locator("#troubles")).to_contain_text("next try in")

    app.ending = False
    app.fleet.change(1, state="draining")
    await page.get_by_role("button", name="Try now").click()
    await live(page)
    await expect(page.locator("#troubles")).to_be_empty()
    await expect(cell(page, app.fleet.workers[1].id)).to_have_accessible_name(re.compile("draining"))


async def test_a_token_is_asked_for_once_and_a_wrong_one_is_said(visit: Visit) -> None:
    app = ConsoleApp(MadeUpFleet(2), token="right")
    _, page = await visit(app=app)
    dialog = page.get_by_role("dialog", name="Token of the admin API")
    await dialog.get_by_label("Token").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(dialog).to_contain_text("This token is not known here.")
    await dialog.get_by_label("Token").fill("right")
    await page.keyboard.press("Enter")
    await live(page)
    await expect(page.locator("#map .cell")).to_have_count(2)

    await page.reload()
    await live(page)
    await expect(dialog).to_be_hidden()
    assert await page.evaluate("Object.keys(localStorage).length") == 0
    assert await page.evaluate("document.cookie") == ""


async def test_a_page_that_asks_for_several_things_at_once_asks_for_the_token_once(visit: Visit) -> None:
    """As from a bookmark: the stream and two lists of the page are refused at the same time."""
    app = ConsoleApp(MadeUpFleet(2), token="right", pages=PageAnswers("a name"))
    _, page = await visit(app=app)
    await page.goto(f"{app.url}/#settings")
    await page.reload()
    dialog = page.get_by_role("dialog", name="Token of the admin API")
    await dialog.get_by_label("Token").fill("right")
    await page.keyboard.press("Enter")
    await live(page)
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#settings-list")).to_contain_text("queue.size")
    await expect(page.locator("#settings-history")).to_contain_text("a name")


async def test_without_a_token_nothing_is_shown_and_it_says_so(visit: Visit) -> None:
    _, page = await visit(app=ConsoleApp(MadeUpFleet(2), token="right"))
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    await expect(page.locator("#troubles")).to_contain_text("Nothing is shown without a token")
    await expect(page.locator("#map .cell")).to_have_count(0)


# Safety.


async def test_names_that_hold_markup_are_shown_as_text(visit: Visit) -> None:
    fleet = MadeUpFleet(3)
    fleet.change(0, id=MARKUP, site=MARKUP, models=(MARKUP,), bucket=MARKUP, engine=MARKUP)
    fleet.trouble = Conditions(redis=MARKUP, keys=MARKUP, links={MARKUP: "down"})
    fleet.policy = MARKUP
    _, page = await visit(fleet)
    await expect(page.locator("#troubles")).to_contain_text(MARKUP)
    await page.get_by_label("Group by").select_option("model")
    await page.locator("#map .cell", has_text=MARKUP).click()
    await expect(page.locator("#inspector-title")).to_have_text(MARKUP)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Pause").click()
    await page.locator("#decisions button", has_text=MARKUP).first.click()
    await expect(page.locator("#inspector")).to_contain_text(MARKUP)

    assert await page.evaluate("window.harmed") is None
    assert await page.locator("img").count() == 0
    assert await page.locator("script").count() == 2


async def test_no_page_makes_markup_of_names_or_puts_them_or_a_token_into_its_address(visit: Visit) -> None:
    app = ConsoleApp(MadeUpFleet(2), token="right", pages=PageAnswers(MARKUP))
    app.pages.tenants = True
    _, page = await visit(app=app)
    await page.get_by_role("dialog").get_by_label("Token").fill("right")
    await page.keyboard.press("Enter")
    await live(page)
    for title in ("Explain", "Tree", "Settings", "Audit", "Tenants"):
        await page.get_by_role("navigation").get_by_role("link", name=title).click()
        shown = page.locator(f"#page-{title.lower()}")
        await expect(shown).to_contain_text(MARKUP)
        if title == "Explain":
            await page.locator("#explain-recent button").click()
            await expect(page.locator("#explain-answer")).to_contain_text(MARKUP)
        assert page.url == f"{app.url}/#{title.lower()}"
    assert await page.evaluate("window.harmed") is None
    assert await page.locator("img").count() == 0


# Further pages.


async def test_hovering_a_chart_says_the_values_of_that_moment_below_all_of_them(visit: Visit) -> None:
    _, page = await visit(samples=12)
    notes = page.locator(".chart-note")
    await expect(notes.first).to_have_text("cached share of prompt tokens, as engines report")
    box = await page.locator(".chart .u-over").first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    await expect(notes.first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: \d\d %$"))
    await expect(notes.nth(1)).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: P50 .* · P90 .*"))
    await page.mouse.move(0, 0)
    await expect(notes.first).to_have_text("cached share of prompt tokens, as engines report")


async def test_a_request_is_pasted_or_chosen_and_explained(visit: Visit) -> None:
    app, page = await visit()
    await page.get_by_role("link", name="Explain").click()
    await page.get_by_label("Body").fill("{")
    await page.get_by_role("button", name="Explain").click()
    answer = page.locator("#explain-answer")
    await expect(answer).to_contain_text("This is not JSON")

    await page.get_by_label("Body").fill('{"model": "m"}')
    await page.get_by_role("button", name="Explain").click()
    await expect(answer).to_contain_text("agent is the cheapest")
    rows = answer.get_by_role("table", name="the cheapest first").get_by_role("row")
    await expect(rows).to_have_count(1 + 12)
    await answer.get_by_role("button", name="Show all 30 candidates").click()
    await expect(rows).to_have_count(1 + 30)
    await expect(answer.get_by_role("group", name="Candidates", exact=True)).to_be_focused()
    assert app.pages.asked == [{"endpoint": "/v1/chat/completions", "request": {"model": "m"}}]

    await page.locator("#explain-recent button").click()
    await expect(answer).to_contain_text("Only the first 256 tokens are compared")
    await expect(answer).to_contain_text("7.2K of 7.4K tokens cached, first token after 13 ms")
    assert app.pages.asked[1:] == [{"request_id": "agent"}]


async def test_a_decision_is_asked_again_from_its_panel(visit: Visit) -> None:
    app, page = await visit()
    await page.get_by_role("button", name="Pause").click()
    await page.locator("#decisions button").first.click()
    await page.get_by_role("button", name="What would be decided now?").click()
    await expect(page.get_by_label("Body")).to_be_focused()
    await expect(page.locator("#explain-answer")).to_contain_text("agent is the cheapest")
    assert set(app.pages.asked[0]) == {"request_id"}


async def test_a_setting_is_changed_and_undone_after_confirmations(visit: Visit) -> None:
    app, page = await visit()
    await page.get_by_role("link", name="Settings").click()
    await expect(page.locator("#settings-list")).not_to_contain_text("server.port")  # it has its default
    await page.get_by_role("button", name="Change queue.size").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Value").fill("7")
    await dialog.get_by_label("Why").fill("busy")
    await dialog.get_by_role("button", name="Change it").click()
    await expect(dialog).to_be_hidden()
    said = {"values": {"queue.size": 7}, "comment": "busy", "expected_revision": "r1"}
    assert app.changes == [("settings", "placement.policy", said)]
    await expect(page.get_by_role("button", name="Change queue.size")).to_be_focused()

    await page.get_by_role("button", name="Undo the change").click()
    await dialog.get_by_role("button", name="Undo it").click()
    await expect(dialog).to_be_hidden()
    assert app.pages.changed == [{"change_id": "c1"}]
    await expect(page.get_by_role("button", name="Undo the change")).to_be_focused()


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
async def test_every_page_is_accessible_and_nothing_is_cut_off(visit: Visit, width: int, scheme: str) -> None:
    app = ConsoleApp(MadeUpFleet(3))
    app.pages.tenants = True
    _, page = await visit(app=app, width=width, height=844, scheme=scheme)
    for title in ("Explain", "Tree", "Settings", "Audit", "Tenants"):
        await page.get_by_role("navigation").get_by_role("link", name=title).click()
        await expect(page.locator(f"#page-{title.lower()}")).to_contain_text("agent")
        await agreeable(page)
        assert await page.evaluate("document.documentElement.scrollWidth") == width


# Looks.


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_is_accessible_in_light_and_dark(visit: Visit, scheme: str) -> None:
    fleet = MadeUpFleet(60)
    for number, fields in enumerate(({"state": "unhealthy"}, {"state": "draining"}, {"circuit": "open"})):
        fleet.change(number, **fields)
    fleet.trouble = replace(Conditions(redis="refused", dropped_ops=4), rejected_per_s=1.0)
    _, page = await visit(fleet, scheme=scheme)
    await expect(page.locator("#troubles .trouble").first).to_be_visible()
    await agreeable(page)

    await cell(page, fleet.workers[1].id).click()
    await expect(page.get_by_role("progressbar")).to_be_visible()
    await agreeable(page)
    await page.get_by_role("button", name="Put back in service …").click()
    await agreeable(page)


async def test_cards_are_accessible_on_a_phone_and_nothing_is_cut_off(visit: Visit) -> None:
    fleet = MadeUpFleet(8)
    fleet.change(0, state="unhealthy")
    fleet.change(1, id="a-very-long-name-of-a-worker.in-a-namespace.svc.cluster.local:30000/with/a/path")
    _, page = await visit(fleet, width=390, height=844)
    await agreeable(page)

    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    await cell(page, fleet.workers[1].id).click()
    await expect(page.locator("#inspector")).to_be_visible()
    assert await page.evaluate("document.querySelector('#inspector').scrollWidth") <= 390


async def test_the_theme_follows_the_system_until_somebody_chooses(visit: Visit) -> None:
    _, page = await visit(1, scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = await page.evaluate(ground)
    await page.get_by_role("button", name="Theme: automatic").click()
    light = await page.evaluate(ground)
    assert light != dark

    await page.reload()
    await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert await page.evaluate(ground) == light


# Modules without a page.


async def test_events_are_found_however_the_network_cuts_them(visit: Visit) -> None:
    _, page = await visit(1)
    found = await page.evaluate(
        """async () => {
            const { EventParser } = await import("/console/assets/stream.js");
            const lines = "event: a|data: {\\"x\\":\\"→\\"}||: silence||event: b|data: 2||event: c|";
            const bytes = new TextEncoder().encode(lines.replaceAll("|", "\\n"));
            const cuts = [];
            for (const step of [1, 3, 7, bytes.length]) {
                const parser = new EventParser();
                const events = [];
                for (let n = 0; n < bytes.length; n += step) {
                    events.push(...parser.push(bytes.slice(n, n + step)));
                }
                cuts.push(JSON.stringify(events));
            }
            return [...new Set(cuts)].map((each) => JSON.parse(each));
        }"""
    )
    assert found == [[{"event": "a", "data": '{"x":"→"}'}, {"event": "b", "data": "2"}]]


async def test_figures_have_units_and_few_digits(visit: Visit) -> None:
    _, page = await visit(1)
    said = await page.evaluate(
        """async () => {
            const u = await import("/console/assets/units.js");
            return [
                ...[0, 0.0004, 0.083, 0.25, 1.234, 12.34, 125, 4000, 200000, null].map(u.seconds),
                ...[0, 0.034, 0.5, 1, null].map(u.percent),
                ...[0, 0.02, 3.21, 85.4, 12000].map(u.rate),
                ...[512, 8192, 1600000, 999999, null].map(u.tokens),
                ...[1.25e9, 1e7, 1e10].map(u.bandwidth),
                u.counted(1, "request"), u.counted(2000, "request"),
            ];
        }"""
    )
    assert said == [
        *("0 s", "1 ms", "83 ms", "250 ms", "1.23 s", "12.3 s", "2 min", "66 min", "2 d 7 h", "–"),
        *("0 %", "3.4 %", "50 %", "100 %", "–"),
        *("0/s", "0.02/s", "3.2/s", "85/s", "12,000/s"),
        *("512", "8.2K", "1.6M", "1.0M", "–"),
        *("10 Gbit/s", "80 Mbit/s", "80 Gbit/s"),
        *("1 request", "2,000 requests"),
    ]
