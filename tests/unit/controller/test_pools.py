"""A controller's pool can grow and shrink while work is under way."""

import threading

from mzplan.controller.work import WorkPool


def test_a_pool_grows_shrinks_and_finishes_all_submitted_work() -> None:
    pool, release, both = WorkPool(1), threading.Event(), threading.Barrier(2)
    first = pool.submit(release.wait, 20.0)
    pool.resize(2)
    pair = [pool.submit(both.wait, 20.0) for _ in range(2)]  # neither job ends without the other
    assert sorted(one.result(20.0) for one in pair) == [0, 1] and not first.done()
    pool.resize(1)
    after = pool.submit(lambda: "after")
    assert not after.done()  # one job at a time again, and the first pool still exists
    release.set()
    assert first.result(20.0) and after.result(20.0) == "after"
    pool.shutdown(wait=True, cancel_futures=True)
