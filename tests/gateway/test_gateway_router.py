"""Which worker gets a request."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.router import FIRST_BACKOFF, MAX_BACKOFF, Router


def router_of(**capacities: int) -> Router:
    """A router whose workers are all up."""
    router = Router(capacities, random.Random(1))
    for address, capacity in capacities.items():
        router.up(address, capacity)
    return router


def test_nobody_is_chosen_before_a_probe():
    """Workers are down until a probe says otherwise, and due for one at once."""
    router = Router(["a"], random.Random(1))
    assert router.choose() is None
    assert router.due("a") < 0
    router.up("a", 1)
    assert router.choose() == "a"


def test_load_is_relative_to_capacity():
    """A worker that can run three times as many gets three quarters of the calls."""
    router = router_of(small=2, large=6)
    chosen = Counter(router.choose() for _ in range(8))
    assert chosen == {"small": 2, "large": 6}


def test_release_makes_room():
    """A worker whose call ended is the least loaded again."""
    router = router_of(a=4, b=4)
    first, second = router.choose(), router.choose()
    assert {first, second} == {"a", "b"}
    router.release(second)
    assert router.choose() == second


def test_ties_are_broken_by_the_injected_randomness():
    """Gateways with different randomness do not all begin with the same worker."""
    firsts = set()
    for seed in range(20):
        router = Router("abc", random.Random(seed))
        for address in "abc":
            router.up(address, 1)
        firsts.add(router.choose())
    assert firsts == {"a", "b", "c"}


def test_backoff_doubles_and_ends_with_success():
    """0.25, 0.5, then 1 s; after a success it begins anew; failures of one moment count once."""
    router = router_of(a=1)
    now, waits = 100.0, []
    for _ in range(4):
        router.down("a", now)
        router.down("a", now)
        waits.append(router.due("a") - now)
        now = router.due("a")
    assert waits == [FIRST_BACKOFF, 0.5, MAX_BACKOFF, MAX_BACKOFF]
    router.up("a", 1)
    router.down("a", now)
    assert router.due("a") - now == FIRST_BACKOFF


def test_a_worker_that_is_back_is_used_again():
    """Down: not chosen. Up after that: chosen."""
    router = router_of(a=1, b=1)
    router.down("a", 0.0)
    assert [router.choose() for _ in range(3)] == ["b", "b", "b"]
    router.up("a", 1)
    assert router.choose() == "a"
    assert router.choose({"a", "b"}) is None


@given(st.lists(st.tuples(st.sampled_from(["choose", "release", "down", "up"]), st.sampled_from("abc")), max_size=60))
def test_the_choice_is_always_the_least_loaded_that_is_up(steps):
    """Against a plain recount of every step."""
    router, up, running = Router("abc", random.Random(0)), set(), Counter()
    for step, name in steps:
        match step:
            case "choose":
                chosen = router.choose()
                assert (chosen is None) == (not up)
                if chosen is not None:
                    assert chosen in up
                    assert running[chosen] == min(running[other] for other in up)
                    running[chosen] += 1
            case "release" if running[name]:
                router.release(name)
                running[name] -= 1
            case "down":
                router.down(name, 0.0)
                up.discard(name)
            case "up":
                router.up(name, 1)
                up.add(name)
