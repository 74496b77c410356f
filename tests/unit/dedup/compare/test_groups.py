"""Groups: thresholds, stars against their slow definition, what people forbid, and what a report says of members."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clip_client.dedup import thresholds_for
from clip_client.dedup.aligned import Match
from clip_client.dedup.compare.cells import wilson_interval
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.compare.neighbours import HASH_BITS, Evidence
from clip_client.dedup.compare.star_groups import CannotLink, minimum_similarity, star_groups
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.types import BURST, EXACT, SAME_PIXELS, SAME_SCENE, SIMILAR, Metadata, is_random
from tests.fixtures.vectors import at_degrees, clusters
from tests.unit.dedup.compare.comparisons import evidence_of, grouped, with_peak_bytes

MODEL = "ViT-B-32/openai@1a2b3c4d"


@pytest.mark.parametrize(
    ("model_id", "is_untrained"),
    [
        ("ViT-B-32/random:0@1a2b3c4d", True),
        ("ViT-B-32/random@1a2b3c4d+fp16", True),
        (MODEL, False),
        ("ViT-B-32//data/random/weights@2.pt@1a2b3c4d", False),
    ],
)
def test_random_weights_are_known_by_the_id(model_id: str, is_untrained: bool) -> None:
    assert is_random(model_id) is is_untrained
    found = thresholds_for(model_id)
    assert found.recommended is not is_untrained
    # Two different textures reach 0.9965 under random weights, copies stay above 0.998.
    assert not is_untrained or 0.9965 < found.similar <= 0.998


def test_a_threshold_is_from_0_to_1_and_says_where_it_comes_from() -> None:
    known, unknown = thresholds_for(MODEL), thresholds_for("ViT-L-14/laion2b@1a2b3c4d")
    assert known.similar == unknown.similar
    assert ["not measured for this model" in one.source for one in (known, unknown)] == [False, True]
    asked = thresholds_for(MODEL, 0.9)
    assert asked.similar == 0.9
    assert "0.9 was asked for" in asked.source
    for value in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            thresholds_for(MODEL, value)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (5, 5), (1, 3), (34, 35), (380, 381), (999, 1000)])
def test_the_interval_is_wilsons(successes: int, trials: int) -> None:
    # By definition: the shares from which the observed one is 1.96 standard deviations away, and no more.
    share = successes / trials
    for end in wilson_interval(successes, trials):
        assert 0 <= end <= 1
        assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / trials, abs=1e-12)
    assert wilson_interval(0, 0) == (0.0, 1.0), "without trials nothing is known"


# Vectors in a plane whose products are these decimals, so that each test can stand right on a threshold.
A = (1.0, 0.0)
AT_96 = (0.96, 0.28)
AT_80 = (0.8, 0.6)
BELOW = (0.79, 0.6131)
AT_MINUS_28 = (-0.28, 0.96)
NOTHING = (np.nan, np.nan)


def file(path: str, files: int = 1, **features: Any) -> Photo:
    """A file; of two, the one with more files is kept. Those whose names begin alike have the same bytes."""
    return Photo(path=path, sha256=path[:1] * 64, size_bytes=1, files=files, features=ImageFeatures(**features))


def groups(
    files: Sequence[Sequence[Photo]], vectors: Sequence[tuple[float, float]], **more: Any
) -> tuple[DuplicateGroup, ...]:
    return grouped(files, vectors, KeepRules(["siblings"]), similar=0.8, **more)


def photos(*files: int) -> list[list[Photo]]:
    """Contents of one file each, ``a.jpg``, ``b.jpg``, ...; the one with the most files is kept."""
    return [[file(f"{'abcdefgh'[row]}.jpg", number)] for row, number in enumerate(files)]


def named(group: DuplicateGroup) -> dict[str, tuple[str, str]]:
    """What each member is a closer copy of, and how certain that is."""
    return {member.path: (member.copy_of, member.copy_tier) for member in group.members}


@pytest.mark.parametrize("vector", [A, AT_96, AT_80])
def test_a_similarity_on_the_threshold_reaches_it(vector: tuple[float, float]) -> None:
    files = photos(2, 1)
    (group,) = groups(files, [A, vector])
    kept, member = group.members
    assert (group.tier, kept.tier, kept.similarity, kept.photo, kept.matches) == (SIMILAR, EXACT, 1.0, files[0][0], ())
    assert member.similarity == pytest.approx(vector[0], abs=1e-6)
    match = Match(test="embedding", value=member.similarity, threshold=0.8)
    assert member == Member(photo=files[1][0], similarity=member.similarity, tier=SIMILAR, matches=(match,))


TWINS = [[file("a.jpg", 9), file("a2.jpg", 9)], [file("c.jpg")]]
GROUPED: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
    "below the threshold": (photos(2, 1), [A, BELOW], {}, []),
    "without a vector": (photos(2, 1), [A, NOTHING], {}, []),
    "told apart": (photos(2, 1), [A, A], {"cannot_link": [[0, 1]]}, []),
    # The sets hold row numbers, whatever the order in which the photos are preferred.
    "told apart, in another order": (photos(1, 2, 3), [A, A, A], {"cannot_link": [[0, 2]]}, ["c b"]),
    # Equal pixels do not overrule what people decided, nor do two copies of one photo that they told apart.
    "equal pixels, told apart": (photos(2, 1), [A, A], {"pixels": [0, 0], "cannot_link": [[0, 1]]}, []),
    "copies, told apart": (photos(3, 2, 1), [A, A, A], {"pixels": [0, 0, 0], "cannot_link": [[1, 2]]}, ["a b"]),
    "two components": (photos(4, 3, 2, 1), [A, A, A, A], {"components": [[0, 3], [1, 2]]}, ["a d", "b c"]),
    # The last is alike to the second, but not to the kept one.
    "a chain": (photos(3, 2, 1), [A, AT_80, AT_MINUS_28], {}, ["a b"]),
    "copies of one content": (TWINS, [A, A], {}, ["a a2 c"]),
    "copies of a content that was left alone": (TWINS, [A, AT_MINUS_28], {}, ["a a2"]),
}


@pytest.mark.parametrize(("files", "vectors", "more", "names"), GROUPED.values(), ids=GROUPED)
def test_what_is_grouped(files: Any, vectors: Any, more: dict[str, Any], names: list[str]) -> None:
    found = groups(files, vectors, **more)
    assert [" ".join(member.path.removesuffix(".jpg") for member in group.members) for group in found] == names


def test_the_group_has_the_tier_of_its_least_sure_member() -> None:
    (group,) = groups(photos(3, 2, 1), [A, A, AT_80], pixels=[0, 0, 2])
    assert [member.tier for member in group.members] == [EXACT, SAME_PIXELS, SIMILAR]
    assert group.tier == SIMILAR
    # Of equal pixels the vectors have no say.
    (group,) = groups(photos(2, 1), [A, AT_80], pixels=[0, 0])
    assert group.tier == SAME_PIXELS
    assert group.min_similarity == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("vectors", "pixels", "least", "similarities"),
    [
        # Two members that are each 0.96 from the kept photo are 0.8432 from each other.
        ([A, AT_96, (0.96, -0.28)], [0, 1, 2], 0.96**2 - 0.28**2, [("b.jpg", 0.96), ("c.jpg", 0.96)]),
        ([AT_96, NOTHING, A], [0, 0, 2], 0.96, [("c.jpg", 0.96), ("b.jpg", 1)]),
        ([NOTHING, NOTHING], [0, 0], 1, [("b.jpg", 1)]),
    ],
)
def test_the_smallest_similarity_is_that_of_any_two_photos_whose_vectors_say_something(
    vectors: Any, pixels: list[int], least: float, similarities: list[tuple[str, float]]
) -> None:
    (group,) = groups(photos(3, 2, 1)[: len(vectors)], vectors, pixels=pixels)
    assert group.min_similarity == pytest.approx(least, abs=1e-6)
    assert [(member.path, round(member.similarity, 6)) for member in group.members[1:]] == similarities


def test_the_best_photo_is_kept_and_the_others_follow_by_similarity() -> None:
    (group,) = groups(photos(1, 9, 2, 3), [A, AT_96, AT_80, A])
    assert [member.path for member in group.members] == ["b.jpg", "d.jpg", "a.jpg", "c.jpg"]
    assert (group.keep, group.reason) == ("b.jpg", "9 files with its bytes")


@pytest.mark.parametrize(
    ("hashes", "bits"), [([0b1111, 0b1000], 3), ([0b1111, 0], None), ([0b111, None], None), ([None, 0b111], None)]
)
def test_hashes_group_up_to_their_bits(hashes: list[int | None], bits: int | None) -> None:
    found = groups(photos(2, 1), [A, AT_MINUS_28], hashes=hashes)
    expected = [] if bits is None else [(Match(test="perceptual hash", value=bits, threshold=HASH_BITS),)]
    assert [group.members[1].matches for group in found] == expected
    assert all(group.members[1].tier == group.tier == SIMILAR for group in found)


def test_a_member_says_every_test_that_it_passed() -> None:
    (group,) = groups(photos(3, 2, 1), [A, AT_96, AT_MINUS_28], pixels=[0, 0, 2], hashes=[0b1111, 0b0111, 0b1111])
    _, pixels, only_hash = group.members
    assert pixels.matches == (
        Match(test="pixels", value=1, threshold=1),
        Match(test="perceptual hash", value=1, threshold=HASH_BITS),
        Match(test="embedding", value=pixels.similarity, threshold=0.8),
    )
    assert [match.test for match in only_hash.matches] == ["perceptual hash"]
    for hashes in ([0b1, None], [None, 0b1]):  # a hash that says nothing is no match
        (group,) = groups(photos(2, 1), [A, AT_96], hashes=hashes)
        assert [match.test for match in group.members[1].matches] == ["embedding"]


def test_a_copy_of_another_photo_than_the_kept_one_names_its_original() -> None:
    """One of another frame of a burst: two files of its bytes, and one of its pixels."""
    contents = [
        [file("a.jpg", 9)],
        [file("b.jpg", 8), file("b copy.jpg", 8)],
        [file("c.png", 7)],
        [file("d.jpg")],
        [file("e.jpg", 2), file("e copy.jpg", 2)],
    ]
    (group,) = groups(contents, [A, AT_96, AT_96, AT_96, AT_96], pixels=[0, 1, 1, 3, 4])
    assert {path: of for path, of in named(group).items() if of != ("", "")} == {
        "b copy.jpg": ("b.jpg", EXACT),
        "c.png": ("b.jpg", SAME_PIXELS),
        "e copy.jpg": ("e.jpg", EXACT),
    }
    (group,) = groups([[file("a.jpg", 9), file("a copy.jpg", 9)], [file("b.png")]], [A, A], pixels=[0, 0])
    assert set(named(group).values()) == {("", "")}, "copies of the kept photo name no other"


@pytest.mark.parametrize("change", [{"width": 8}, {"height": 8}, {"format": "PNG"}, {}])
def test_frames_of_a_burst_have_one_form_and_other_pixels(change: dict[str, Any]) -> None:
    form = {"width": 4, "height": 3, "format": "JPEG"}
    frames = [
        [file(f"{name}.jpg", size, **form | more, metadata=Metadata(taken_ms=taken_ms, has_sub_second=True))]
        for name, size, taken_ms, more in (("a", 3, 0, {}), ("b", 2, 120, change), ("c", 1, 120, {}))
    ]
    (group,) = groups(frames, [A, A, A], pixels=[0, 1, 0])
    shots = {member.path: member.other_shot for member in group.members}
    assert shots == {"a.jpg": "", "b.jpg": SAME_SCENE if change else BURST, "c.jpg": ""}


def closeness(evidence: Evidence, row: int, other: int, threshold: float, most_bits: int) -> float | None:
    """How close two rows are: 2 for equal pixels, else their similarity; None if they are not alike."""
    if evidence.pixels[row] == evidence.pixels[other]:
        return 2.0
    similarity = round(float(evidence.vectors[row].astype(float) @ evidence.vectors[other].astype(float)), 6)
    bits = int(evidence.hashes[row] ^ evidence.hashes[other]).bit_count()
    if evidence.has_hash[row] and evidence.has_hash[other] and bits <= most_bits:
        return 0.0 if np.isnan(similarity) else similarity
    return similarity if similarity >= threshold else None


def by_definition(
    evidence: Evidence, rows: Sequence[int], threshold: float, most_bits: int, forbidden: set[frozenset[int]]
) -> dict[int, list[int]]:
    """Return the kept row and the members of each group."""
    members: dict[int, list[int]] = {}
    for row in rows:
        near = []
        for keep in members:
            close = closeness(evidence, keep, row, threshold, most_bits)
            if close is not None and frozenset((row, keep)) not in forbidden:
                near.append((close, keep))
        if near:
            closest = max(close for close, _ in near)
            members[next(keep for close, keep in near if close == closest)].append(row)
        else:
            members[row] = []
    found: dict[int, list[int]] = {}
    rejected: list[int] = []
    for keep, claimed in members.items():
        taken: list[int] = []
        for row in claimed:
            is_free = all(frozenset((row, other)) not in forbidden for other in taken)
            (taken if is_free else rejected).append(row)
        if taken:
            found[keep] = taken
    if rejected:
        found |= by_definition(evidence, sorted(rejected), threshold, most_bits, forbidden)
    return found


def stars(
    evidence: Evidence, threshold: float, *, most_bits: int = -1, cannot_link: Iterable[Sequence[int]] = ()
) -> dict[int, list[int]]:
    sets = CannotLink(np.array(rows, dtype=np.intp) for rows in cannot_link)
    return star_groups(evidence, threshold, most_bits=most_bits, cannot_link=sets)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.integers(0, 40), st.just(np.nan)), st.integers(0, 8), st.integers(0, 15), st.booleans()),
        min_size=2,
        max_size=14,
    ),
    sets=st.lists(st.sets(st.integers(0, 13), max_size=5), max_size=4),
    most_bits=st.integers(-1, 2),
)
# Rejected rows are grouped with each other: under the same constraints, and by all evidence.
@example(rows=[(0, 8, 0, False)] * 5, sets=[{1, 2}, {1, 3}, {1, 4}], most_bits=-1)
@example(rows=[(0, 8, 0, False)] * 5, sets=[{1, 2}, {1, 3}, {1, 4}, {2, 4}], most_bits=-1)
@example(rows=[(angle, 2 if angle else 8, 0, False) for angle in (0, 0, 6, -6)], sets=[{1, 2}, {1, 3}], most_bits=-1)
@example(
    rows=[(0, 8, 0, True), (0, 8, 99, True), (6, 8, 15, True), (-6, 8, 7, True)], sets=[{1, 2}, {1, 3}], most_bits=1
)
def test_groups_are_what_their_definition_says(
    rows: list[tuple[float, int, int, bool]], sets: list[set[int]], most_bits: int
) -> None:
    count = len(rows)
    angles, pixels, hashes, has_hash = zip(*rows, strict=True)
    evidence = Evidence(
        at_degrees(*angles),
        # Equal pixels are rare.
        np.array([number if number < 3 else 100 + row for row, number in enumerate(pixels)]),
        np.array(hashes, dtype=np.uint64),
        np.array(has_hash),
    )
    threshold = float(np.cos(np.radians(6.5)))
    inside = [sorted(row for row in one if row < count) for one in sets]
    forbidden = {frozenset(pair) for one in inside for pair in itertools.combinations(one, 2)}
    found = stars(evidence, threshold, most_bits=most_bits, cannot_link=inside)
    assert found == by_definition(evidence, range(count), threshold, most_bits, forbidden)


def test_rows_of_many_blocks_are_grouped_by_the_definition() -> None:
    """300 frames of a night, of which few are alike to the first: many are kept."""
    evidence = evidence_of(clusters(seed=0, count=1, size=300, spread=0.15, dimension=16))
    found = stars(evidence, 0.985)
    assert len(found) > 10
    assert found == by_definition(evidence, range(300), 0.985, -1, set())


def test_similarities_have_six_decimals_and_the_least_is_over_all_pairs_of_all_blocks() -> None:
    evidence = evidence_of([[1, 0], [0.6, 0.8]])
    assert (stars(evidence, 0.6), stars(evidence, 0.600001)) == ({0: [1]}, {})
    assert stars(evidence_of(clusters(seed=4, count=1, size=3, spread=0)), 1.0) == {0: [1, 2]}
    assert minimum_similarity(np.array([[1.000001, 0], [-1.000001, 0]], dtype=np.float32)) == -1.0
    assert minimum_similarity(np.array([[1, 0], [0.9999984, 0.0017]], dtype=np.float32)) == 0.999998
    assert minimum_similarity(at_degrees(0, 6, -6)) == pytest.approx(np.cos(np.radians(12)), abs=1e-6)
    assert minimum_similarity(at_degrees(*[0] * 1100, 40, *[5] * 1000, -30)) == pytest.approx(np.cos(np.radians(70)))
    assert minimum_similarity(at_degrees(0)) == 1.0


def test_photos_that_are_all_kept_take_no_memory_for_their_pairs() -> None:
    """Two decisions about 2,000 photos of one scene: as pairs, 32 MB."""
    evidence, everything = evidence_of(np.tile(np.array([1, 0], dtype=np.float32), (2000, 1))), range(2000)
    found, peak_bytes = with_peak_bytes(lambda: stars(evidence, 0.9, cannot_link=[everything, everything]))
    assert found == {}
    assert peak_bytes < 10e6
