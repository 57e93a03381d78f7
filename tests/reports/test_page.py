"""The page of a round: the same bytes each time, inert whatever a model wrote, and never a zero for what is unknown."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from synthetic import CODE, HOSTILE, attribution, est, make_view

from reports import plots
from reports.page import render
from reports.text import decide, estimate, number, one_line, seconds, signed, visible
from reports.view import RoundView
from schemas.attribution import Cost
from schemas.bucket import Route
from schemas.compare import BucketState, Comparison, Moved
from schemas.decision import TriageDecision
from schemas.metrics import Decision, Estimate
from schemas.rescore import StaleUse

ACTIVE = {
    "script",
    "iframe",
    "object",
    "embed",
    "img",
    "link",
    "form",
    "input",
    "base",
    "video",
    "audio",
    "foreignobject",
}
LOADS = {"src", "srcset", "action", "formaction", "data", "poster", "background", "xlink:href", "ping"}


class Page(HTMLParser):
    """Every element and attribute of a page, as a browser would find them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: dict[str, int] = {}
        self.attributes: set[tuple[str, str, str]] = set()
        self.text: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes |= {(tag, name, value or "") for name, value in attrs}
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def section(html: str, name: str) -> str:
    return html[html.index(f'<section id="{name}">') :].split("</section>")[0]


def test_two_renders_are_the_same_bytes() -> None:
    assert render(make_view()).encode() == render(make_view()).encode()


@pytest.mark.parametrize("hostile", [None, HOSTILE, "</pre></style><script>x</script>", "' onload='alert(1)"])
def test_the_page_is_well_formed_and_inert(hostile: str | None) -> None:
    page = Page(render(make_view(hostile=hostile)))
    assert not page.unbalanced
    assert not page.open
    assert not ACTIVE & set(page.tags)
    assert not [a for a in page.attributes if a[1].startswith("on") or a[1] in LOADS]
    links = {value for tag, name, value in page.attributes if name == "href"}
    assert links
    assert all(re.fullmatch(r"#[a-z0-9-]+", link) for link in links)


def test_hostile_text_adds_no_element_and_is_shown_as_text() -> None:
    plain, hostile = Page(render(make_view())), Page(render(make_view(hostile=HOSTILE)))
    assert plain.tags == hostile.tags
    shown = "".join(hostile.text)
    assert "<script>alert(1)</script>" in shown
    assert "{{7*7}}" in shown
    assert "\\x1b[2J" in shown
    assert "\\u202egnp.exe" in shown


def test_the_page_loads_nothing_and_says_so(view: RoundView) -> None:
    html = render(view)
    assert "default-src 'none'" in html
    assert not re.search(r"https?://|url\(|@import", html)


def test_the_headline_has_the_estimate_and_both_comparisons(view: RoundView) -> None:
    html = render(view)
    head = html[: html.index("<nav>")]
    for shown in ("0.457", "[0.387, 0.527]", "n=192", "2 errors apart", "+0.372", "+0.127", "not yet", "yes"):
        assert shown in head


def test_undefined_is_a_dash_and_never_zero(view: RoundView) -> None:
    page = section(render(view), "evaluation")
    rows = [row for row in re.findall(r"<tr.*?</tr>", page, re.S) if "<td>boundary</td>" in row and "swatch" in row]
    assert len(rows) == 4
    assert all(row.count(">–<") == 1 for row in rows)  # tool_calls was not measured there
    assert "+4 errors" in page


def test_a_round_that_has_only_begun_renders() -> None:
    html = render(make_view(rounds=1, stages=("goal", "data")))
    assert "The evaluation stage has not run." in html
    assert "no data" in section(html, "goal")
    assert ">0.000<" not in html[: html.index("<nav>")]


def test_an_empty_view_renders() -> None:
    page = Page(render(RoundView(round=1, records={})))
    assert not page.unbalanced
    assert "The goal stage has not run." in "".join(page.text)


def test_gates_show_the_decision_and_the_numbers(view: RoundView) -> None:
    gates = section(render(view), "gates")
    assert gates.count('<details class="gate"') == 6
    assert len(re.findall(r'<details class="gate" open>', gates)) == 1  # the NO-GO
    assert "data should act" in gates
    assert "[0.346, 0.628]" in gates


def test_each_bucket_has_its_example_and_first_failing_check(view: RoundView) -> None:
    html = section(render(view), "failures")
    assert html.count('<article id="b-') == 6
    assert CODE.splitlines()[0] in html
    assert "hidden_1 (f2p): longest_run([0, 0]) gave 1, expected 2" in html
    assert "by decision dec-0007" in html


def test_treated_buckets_stand_beside_untreated_ones(view: RoundView) -> None:
    html = section(render(view), "failures")
    again = html[html.index("measured again") : html.index("Material for")]
    assert re.findall(r"<td>(treated|untreated)</td>", again) == ["treated", "treated", "untreated", "untreated"]
    assert re.findall(r'badge \w+">([a-z ]+)<', again) == ["shrank", "not enough evidence", "unchanged", "grew"]


def test_changed_pins_come_first_and_are_marked(view: RoundView) -> None:
    rows = re.findall(r'<tr class="(changed|)"><td>(\w+)</td>', section(render(view), "pins"))
    assert [name for css, name in rows if css] == ["audit_verifier", "goal", "policy", "tasks"]
    assert [css for css, _ in rows] == sorted((css for css, _ in rows), reverse=True)


def test_cost_adds_up_and_what_no_stage_reported_stays_unknown(view: RoundView) -> None:
    total = re.search(r'<tr class="total">.*?</tr>', section(render(view), "cost"), re.S)
    assert total is not None
    assert re.findall(r'"n">([^<]+)<', total.group()) == [
        "22 min 37 s",
        "310,517",
        "81,658",
        "1,410",
        "2,744",
        "3,966",
        "269.2",
    ]
    assert RoundView(round=1, records={}).costs() == []
    assert view.cost("goal", "tool calls") is None


def test_a_curve_leaves_a_gap_for_what_is_unknown() -> None:
    svg = plots.curve([0.1, None, 0.3, 0.4], "kl")
    assert svg.count("<circle") == 3
    assert svg.count("<polyline") == 2
    assert plots.curve([None, None], "kl") == ""


def test_a_forest_row_without_data_has_no_point() -> None:
    svg = plots.forest([plots.Row("a", est(0.5)), plots.Row("b", Estimate(value=None))], "f")
    assert svg.count("<circle") == 1
    assert ">–</text>" in svg


def test_ticks_lie_inside_and_are_round() -> None:
    assert plots.ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(3.1 <= tick <= 9.7 for tick in plots.ticks(3.1, 9.7))


def test_numbers_read_the_same_everywhere() -> None:
    assert estimate(Estimate(value=0.427, low=0.35, high=0.51, n=150)) == "0.427 [0.350, 0.510] n=150"
    assert estimate(Estimate(value=None, errors=3)) == "– (3 errors)"
    assert estimate(None) == number(None) == number(float("nan")) == seconds(None) == "–"
    assert estimate(Estimate(value=0.0, low=0.0, high=0.02, n=150)) == "0.000 [0.000, 0.020] n=150"
    assert (number(0.00002), number(12345.0), number(46.25), signed(0.1), signed(-0.1)) == (
        "2.0e-05", "12,345", "46.2", "+0.100", "-0.100",
    )  # fmt: skip
    assert number(-0.001, 2) == "0.00"
    assert [seconds(s) for s in (0.25, 42.1, 725, 12000)] == ["250 ms", "42.1 s", "12 min 05 s", "3 h 20 min"]


def test_invisible_characters_become_visible() -> None:
    assert visible("a\x1b[31mb\u202ec\u2028d\x00\ud800\n\te") == "a\\x1b[31mb\\u202ec\\u2028d\\x00\\ud800\n\te"
    assert one_line("a\nb" * 200, 20) == "a⏎ba⏎ba⏎ba⏎ba⏎ba⏎ba…"


def test_the_bound_of_the_interval_decides() -> None:
    inside = Estimate(value=0.5, low=0.4, high=0.6, n=9)
    assert decide(inside, 0.4, None) is Decision.GO
    assert decide(inside, 0.5, None) is Decision.INCONCLUSIVE
    assert decide(inside, 0.7, None) is Decision.NO_GO
    assert decide(inside, None, 0.6) is Decision.GO
    assert decide(inside, None, 0.3) is Decision.NO_GO
    assert decide(Estimate(value=None), 0.5, None) is None


def test_the_round_before_and_what_is_stale_stand_in_the_page(view: RoundView) -> None:
    at = est(0.5)
    moved = Moved(suite="held_out", metric="pass@1", before=at, after=at, difference=at)
    bucket = BucketState(id="0" * 12, cause=HOSTILE, family="f", route=Route.SFT, before=3, after=None)
    both = Comparison(before=1, after=2, pins=[], metrics=[moved], buckets=[bucket])
    use = StaleUse(use="group_member", round=2, stage="rl", name=HOSTILE, trajectory="rl-1", advantage=0.25, step=3)
    html = render(replace(view, comparison=both, stale=[use]))
    assert "Against round 1" in section(html, "evaluation")
    assert "closed" in section(html, "failures")
    assert "group member" in section(html, "pins")
    assert "+0.250" in section(html, "pins")
    assert '<a href="#stale">1 stale</a>' in html
    assert not ACTIVE & set(Page(html).tags)


# --- people


def triaged(who: str = "ann", because: str = "it can learn this") -> RoundView:
    """Three rounds. In the last one a person gave the first bucket away and rejected what the second gets."""
    view = make_view(rounds=3)
    backflow = view.backflow
    assert backflow is not None
    first, second, *rest = backflow.buckets
    first = first.model_copy(
        update={"escalated": True, "treated_in_vain": 2, "cost": {"attempts": 64, "tokens": 0}, "undecided": ["hint"]}
    )
    said = attribution(view.attempts[1], "some_pass", Route.RL)
    when = "2026-03-01T08:00:00.000+00:00"
    decisions = [
        TriageDecision(id="a" * 12, bucket=first.id, round=3, route=Route.RL, who=who, when=when, because=because),
        TriageDecision(id="b" * 12, bucket=second.id, round=3, approve=False, who=who, when=when, because=because),
    ]
    records = {**view.records, "backflow": backflow.model_copy(update={"buckets": [first, second, *rest]})}
    handed = [one.model_copy(update={"approved": one.bucket != second.id}) for one in backflow.material]
    return replace(view, records=records, decisions=decisions, handed=handed, attributions={said.trajectory: said})


def row_of(html: str, cause: str) -> str:
    return next(row for row in re.findall(r"<tr>.*?</tr>", html, re.S) if f"<b>{cause}</b></a>" in row)


def test_a_bucket_says_who_gave_it_away_what_was_in_vain_and_what_is_open() -> None:
    row = row_of(section(render(triaged()), "failures"), "never_solved")
    for shown in (">rl</span>", "ann: it can learn this", "escalated", "treated 2 times", "64 attempts", "open: hint"):
        assert shown in row
    assert "0 tokens" not in row
    assert row.count("<circle") == 3, "a share for each of three rounds"
    other = row_of(section(render(triaged()), "failures"), "sometimes_solved")
    assert "rejected by ann" in other


def test_an_example_names_its_failed_tests_and_the_training_task_that_it_is_most_like() -> None:
    view = make_view()
    of = view.attempts[1]
    told = [
        article(render(replace(view, attributions={of.trajectory.id: attribution(of, "r", Route.RL, **more)})))
        for more in ({}, {"test": "<b>x</b>\x1b[2J", "failed": 3})
    ]
    assert "<b>Failed tests</b> hidden_1</p>" in told[0]
    assert "most similar training task: 0.42 of 1, repair/near/arith_1" in told[0]
    assert "<b>Failed tests</b> &lt;b&gt;x&lt;/b&gt;\\x1b[2J, and 2 more</p>" in told[1]
    assert "Failed tests" not in article(render(view)), "nothing is known"


def article(html: str) -> str:
    """The examples of the failures."""
    return "".join(re.findall(r'<article id="b-.*?</article>', html, re.S))


def test_the_flow_goes_where_people_send_the_failures() -> None:
    flow = re.search(r'<figure class="flow">.*?</figure>', render(triaged()), re.S)
    assert flow is not None
    assert "rl (35)" in flow.group()
    assert "data (" not in flow.group()


def test_rounds_stand_beside_buckets_and_a_round_without_one_is_a_dash() -> None:
    view = triaged()
    older = view.previous
    assert older is not None
    assert older.backflow is not None
    fewer = older.backflow.model_copy(update={"buckets": older.backflow.buckets[1:]})
    html = section(
        render(replace(view, previous=replace(older, records={**older.records, "backflow": fewer}))), "failures"
    )
    matrix = re.search(r'<table class="matrix">.*?</table>', html, re.S)
    assert matrix is not None
    first = re.findall(r"<tr>.*?</tr>", matrix.group(), re.S)[1]
    assert re.findall(r"</span><b>(\d+)</b>|muted\">(–)<", first) == [("21", ""), ("", "–"), ("21", "")]
    assert "--h:0.378" in first
    assert "treated: shrank" in first
    assert 'class="matrix"' not in render(make_view(rounds=1))


def test_the_cost_of_each_rung_and_what_the_cheap_ones_decide_stand_in_the_page() -> None:
    view = triaged()
    assert view.backflow is not None
    record = view.backflow.model_copy(update={"ladder": {"L2": Cost(experiments=3, attempts=44, tokens=7727)}})
    html = section(render(replace(view, records={**view.records, "backflow": record})), "failures")
    assert re.search(r'<tr><td>L2</td><td class="muted">let the policy go on</td>.*>44<.*>7,727</td></tr>', html)
    assert "0 of 1 decided by the log, L0 and L1 alone, 1 with L2 or L3; 0 still open." in html
    assert "Cost of the experiments" not in render(view)


def test_the_example_shows_its_first_bad_turn_where_that_is_known() -> None:
    html = section(render(triaged()), "failures")
    assert "First bad turn: 1 of 2" in html
    assert "L2 hint: 3 of 4 pass with a hint" in html
    assert html.count("Last turn: ") == 5


def test_what_people_write_is_hostile_too() -> None:
    text = HOSTILE.encode(errors="replace").decode()
    page = Page(render(triaged(who=text, because=text)))
    assert page.tags == Page(render(triaged())).tags
    assert not page.unbalanced
    assert "Decided by people" in "".join(page.text)
