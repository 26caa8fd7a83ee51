# SPDX-License-Identifier: Apache-2.0
"""The real threads: reads overlap, copies do not."""

from __future__ import annotations

import itertools
import queue
import threading

from helpers.plain_bundles import random_bundle

from ballast_worker.residency.loader import ThreadedLoader


class Memory:
    """Records which fills overlap."""

    def __init__(self):
        self.inside = 0
        self.most = 0
        self.filled = []

    def fill(self, key, chunks):
        self.inside += 1
        self.most = max(self.most, self.inside)
        list(chunks)
        self.filled.append(key)
        self.inside -= 1


class Transfer:
    kept = False

    def __init__(self, *, error=None):
        self.error = error
        self.closed = 0

    def chunks(self):
        if self.error:
            raise self.error
        return iter(())

    def close(self):
        self.closed += 1


class Store:
    """Every acquire waits until as many are inside as the barrier has parties. What is there is found by its digest."""

    def __init__(self, parties):
        self.together = threading.Barrier(parties)
        self.transfers = []
        self.there = {}

    def find(self, bundle, *, keep):
        return self.there.get(bundle.digest)

    def acquire(self, bundle, *, keep, progress):
        self.together.wait(10)
        self.transfers.append(Transfer())
        return self.transfers[-1]


def make(store, memory):
    posts = queue.SimpleQueue()
    return ThreadedLoader(memory=memory, store=store, post=posts.put), posts


def test_a_copy_that_is_there_is_fetched_without_a_thread(tmp_path):
    store = Store(2)  # with an acquire nobody would ever be fetched
    loader, posts = make(store, Memory())
    bundle = random_bundle(tmp_path, 256, seed=1)
    there = store.there[bundle.digest] = Transfer()
    fetched = []
    loader.fetch(bundle, keep=True, done=lambda *result: fetched.append(result))
    assert fetched == []  # the caller is not called back in its own call
    posts.get_nowait()()
    assert fetched[0][0] is there
    loader.close()


def test_files_of_different_models_are_read_at_the_same_time_and_copied_one_after_the_other(tmp_path):
    """With one lock around the reads the barrier would never be passed. ray-project/ray#65346."""
    store, memory = Store(3), Memory()
    loader, posts = make(store, memory)
    bundles = [random_bundle(tmp_path / str(i), 256, seed=i) for i in range(3)]
    fetched, filled = [], []
    for bundle in bundles:
        loader.fetch(bundle, keep=False, done=lambda transfer, seconds: fetched.append((transfer, seconds)))
    for _ in range(3):
        posts.get(timeout=10)()
    for i, (transfer, _) in enumerate(fetched):
        loader.fill(f"m{i}", transfer, lambda error, seconds: filled.append((error, seconds)))
    for _ in range(3):
        posts.get(timeout=10)()
    loader.close()
    assert memory.filled == ["m0", "m1", "m2"]
    assert memory.most == 1
    assert [error for error, _ in filled] == [None] * 3
    assert all(seconds >= 0 for _, seconds in fetched + filled)
    assert all(transfer.closed == 1 for transfer in store.transfers)


def test_an_error_of_the_store_or_the_source_is_an_answer_and_the_threads_live_on(tmp_path):
    class Broken(Store):
        def find(self, bundle, *, keep):
            raise ValueError("no such table")

        def acquire(self, bundle, *, keep, progress):
            raise OSError("no such disk")

    memory = Memory()
    loader, posts = make(Broken(1), memory)
    answers = []
    loader.fetch(random_bundle(tmp_path / "a", 256), keep=False, done=lambda result, _: answers.append(result))
    posts.get(timeout=10)()
    transfer = Transfer(error=OSError("it became shorter"))
    loader.fill("a", transfer, lambda error, _: answers.append(error))
    posts.get(timeout=10)()
    loader.fill("b", Transfer(), lambda error, _: answers.append(error))
    posts.get(timeout=10)()
    loader.close()
    assert [str(answer) for answer in answers] == ["no such disk", "it became shorter", "None"]
    assert transfer.closed == 1
    assert memory.filled == ["b"]


def test_closing_drops_what_waits_and_closes_its_transfers(tmp_path):
    class Held(Memory):
        def __init__(self):
            super().__init__()
            self.begun, self.go = threading.Event(), threading.Event()

        def fill(self, key, chunks):
            self.begun.set()
            self.go.wait(10)
            super().fill(key, chunks)

    memory = Held()
    loader, _ = make(Store(1), memory)
    transfers = [Transfer(), Transfer()]
    for i, transfer in enumerate(transfers):
        loader.fill(f"m{i}", transfer, lambda *_: None)
    memory.begun.wait(10)
    closer = threading.Thread(target=loader.close)
    closer.start()
    while loader._fills.qsize() < 2:  # the second copy and the end
        pass
    memory.go.set()
    closer.join(10)
    assert memory.filled == ["m0"]
    assert [transfer.closed for transfer in transfers] == [1, 1]


def test_closing_does_not_wait_for_the_rest_of_a_stream(tmp_path):
    class Slow(Transfer):
        def __init__(self):
            super().__init__()
            self.asked, self.go = threading.Event(), threading.Event()
            self.given = 0

        def chunks(self):
            for _ in range(3):
                self.asked.set()
                assert self.go.wait(10)
                self.given += 1
                yield object()

    stream = Slow()
    loader, posts = make(Store(1), Memory())
    errors = []
    loader.fill("stream", stream, lambda error, _: errors.append(error))
    assert stream.asked.wait(10)
    closer = threading.Thread(target=loader.close)
    closer.start()
    while loader._fills.qsize() < 1:  # the end is there, and so the stream is known to be unwanted
        pass
    stream.go.set()
    closer.join(10)
    posts.get(timeout=10)()
    assert [str(error) for error in errors] == ["the worker ends while a stream is read"]
    assert (stream.given, stream.closed) == (1, 1)


class Held(Memory):
    """Fills nothing before it is let go."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def fill(self, key, chunks):
        self.go.wait(10)
        super().fill(key, chunks)


def order_of(fills):
    """The order in which copies that wait are made; each is a key and whether it comes from host memory."""
    memory = Held()
    loader, posts = make(Store(1), memory)
    for key, kept in (("first", False), *fills):
        transfer = Transfer()
        transfer.kept = kept
        loader.fill(key, transfer, lambda *_: None)
    memory.go.set()
    for _ in range(1 + len(fills)):
        posts.get(timeout=10)()
    loader.close()
    return memory.filled


def test_copies_from_host_memory_do_not_queue_behind_streams():
    filled = order_of([("stream", False), ("copy", True)])
    assert filled.index("copy") < filled.index("stream")


def test_a_stream_is_not_overtaken_for_ever():
    filled = order_of([("stream", False), *((f"copy {i}", True) for i in range(100))])
    assert filled.index("copy 0") < filled.index("stream") < filled.index("copy 99")


def test_closing_stops_a_read_that_goes_on(tmp_path):
    class Endless(Store):
        def __init__(self):
            super().__init__(1)
            self.begun, self.stopped = threading.Event(), []

        def acquire(self, bundle, *, keep, progress):
            self.begun.set()
            try:
                for done in itertools.count():
                    progress(done)
            except Exception as error:
                self.stopped.append(str(error))
                raise

    store = Endless()
    loader, _ = make(store, Memory())
    loader.fetch(random_bundle(tmp_path / "a", 256), keep=False, done=lambda *_: None)
    store.begun.wait(10)
    loader.close()
    assert "the worker ends" in store.stopped[0]


def test_what_fails_with_nobody_waiting_for_it_is_logged(tmp_path, caplog):
    class Unkind(Store):
        def unkeep(self, bundle):
            raise OSError("no such lock")

    class Stuck(Transfer):
        def close(self):
            raise OSError("no such file")

    posts = queue.SimpleQueue()
    loader = ThreadedLoader(memory=Memory(), store=Unkind(1), post=posts.put, file_threads=1)
    bundle = random_bundle(tmp_path / "a", 256)
    loader.discard(Stuck())
    loader.unkeep(bundle)
    loader.fetch(bundle, keep=False, done=lambda *_: None)
    posts.get(timeout=10)
    loader.close()
    assert sorted(str(record.exc_info[1]) for record in caplog.records) == ["no such file", "no such lock"]
