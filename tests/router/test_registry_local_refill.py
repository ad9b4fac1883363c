import pytest

from sandgate_router.registry.local.refill import LEAST_SECONDS, MOST_SECONDS, RefillRate


def rate(*, starts: float | None = None, gap: float | None = None) -> RefillRate:
    """Return a rate that has seen many starts and members of this pace."""
    seen = RefillRate()
    for number in range(60):
        if starts is not None:
            seen.started(starts)
        if gap is not None:
            seen.offered(number * gap)
    return seen


@pytest.mark.parametrize(
    ("place", "slots", "seconds"), [(1, 1, 2.0), (2, 1, 4.0), (2, 2, 2.0), (3, 2, 4.0)]
)
def test_with_room_the_wait_is_that_of_the_starts_before(
    place: int, slots: int, seconds: float
) -> None:
    assert rate(starts=2.0).wait(place=place, slots=slots, room=True) == pytest.approx(seconds)


def test_without_room_the_wait_is_how_often_a_member_became_free() -> None:
    seen = rate(starts=0.2, gap=5.0)
    assert seen.wait(place=1, slots=2, room=False) == pytest.approx(5.0)
    assert seen.wait(place=3, slots=2, room=False) == pytest.approx(15.0)


def test_the_latest_pace_counts_the_most() -> None:
    seen = rate(gap=1.0)
    for number in range(10):
        seen.offered(59 + 20.0 * (number + 1))
    assert seen.wait(place=1, slots=1, room=False) > 19


@pytest.mark.parametrize(
    ("seen", "place", "seconds"),
    [(rate(starts=0.001), 1, LEAST_SECONDS), (rate(gap=3600.0), 9, MOST_SECONDS)],
)
def test_the_wait_is_bounded(seen: RefillRate, place: int, seconds: float) -> None:
    assert seen.wait(place=place, slots=1, room=seconds == LEAST_SECONDS) == seconds
