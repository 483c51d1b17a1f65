"""Links that the KV of candidates crosses."""

import numpy as np

from policies import LinkRules, Links
from policies.disaggregation.candidate_sites import CandidatesBySite, SiteMap

LINKS = Links({"far>here": LinkRules(8.0), "far>there": LinkRules(16.0), "near>here": LinkRules(8.0)})
SLOTS = np.arange(4)


def site_map(*ways: tuple[str, str | None], links: Links = LINKS) -> SiteMap:
    """Site and link of each slot."""
    sites = SiteMap(links, 8)
    for slot, (site, link) in enumerate(ways):
        sites.put(slot, site, link)
    return sites


def parted(by_site: CandidatesBySite | None) -> tuple[list[int], list[tuple[str, str, list[int]]]]:
    assert by_site is not None
    return by_site.local.tolist(), [(side.site, side.link, side.slots.tolist()) for side in by_site.remote]


def test_a_site_reaches_its_own_decode_workers_else_those_behind_the_widest_link() -> None:
    sites = site_map()
    assert sites.way("here", ["here", "there"]) == ""
    assert sites.way("far", ["here", "there"]) == "far>there"
    assert sites.way("far", ["here"]) == "far>here"
    assert sites.way("near", ["there"]) is None
    assert sites.way("near", []) is None


def test_of_two_links_as_wide_the_first_by_name_is_taken() -> None:
    alike = Links({"far>b": LinkRules(8.0), "far>a": LinkRules(8.0)})
    assert site_map(links=alike).way("far", ["b", "a"]) == "far>a"


def test_candidates_are_parted_by_what_their_kv_crosses() -> None:
    sites = site_map(("here", ""), ("far", "far>here"), ("near", "near>here"), ("far", "far>here"))
    assert parted(sites.by_site(SLOTS)) == (
        [0],
        [("far", "far>here", [1, 3]), ("near", "near>here", [2])],
    )
    assert [sites.link(slot) for slot in range(5)] == ["", "far>here", "near>here", "far>here", ""]


def test_who_reaches_nobody_is_on_neither_side() -> None:
    sites = site_map(("here", ""), ("island", None), ("near", "near>here"))
    assert parted(sites.by_site(SLOTS)) == ([0, 3], [("near", "near>here", [2])])
    assert parted(sites.by_site(SLOTS[1:2])) == ([], [])
    assert sites.link(1) == ""


def test_local_candidates_have_no_sides() -> None:
    sites = site_map(("here", ""), ("here", ""), ("far", "far>here"))
    local = SLOTS[:2]
    assert sites.by_site(local) is None
    assert sites.by_site(local) is None
    assert sites.by_site(SLOTS) is not None


def test_without_links_sites_mean_nothing() -> None:
    sites = site_map(links=Links())
    assert sites.way("far", ["here"]) == ""
    assert sites.by_site(SLOTS) is None


def test_the_same_list_is_parted_once_and_few_lists_are_kept() -> None:
    sites = site_map(("here", ""), ("far", "far>here"))
    kept = sites.by_site(SLOTS)
    assert sites.by_site(SLOTS) is kept
    others = [SLOTS[:2].copy() for _ in range(200)]
    for other in others:
        assert parted(sites.by_site(other)) == ([0], [("far", "far>here", [1])])
    assert len(sites._cached) <= 100
