"""The slot, and the thread that fills it: the newest frame wins, or each one waits for its turn."""

import threading

from gateway.serving.frontends.cameras.newest import NewestSlot
from gateway.serving.frontends.cameras.reader import DecodedFrame
from gateway.serving.frontends.cameras.reading import ReadingThread, WaitingFrame
from gateway.serving.frontends.cameras.settings import FeedSettings


def frames(count, after=lambda: None):
    for number in range(count):
        yield DecodedFrame(number, number / 10, None, 0.0)
    after()


def test_the_newest_item_replaces_one_that_was_not_taken():
    slot = NewestSlot()
    assert [slot.offer(1), slot.offer(2), slot.offer(3)] == [False, True, True]
    assert slot.take() == 3
    assert slot.take(0.0) is None


def test_what_is_in_a_closed_slot_can_be_taken_and_nothing_is_added():
    slot = NewestSlot()
    slot.offer(1)
    slot.close()
    assert slot.offer(2) is False
    assert [slot.take(), slot.take()] == [1, None]


def test_a_reader_that_is_not_kept_up_with_skips_all_but_the_newest_frame():
    slot, all_read = NewestSlot[WaitingFrame](), threading.Event()
    thread = ReadingThread(frames(10, all_read.set), slot)
    thread.start()
    assert all_read.wait(20)
    assert slot.take().frame.number == 9
    assert slot.take() is None
    thread.join()
    assert (thread.read, thread.skipped, thread.left_out, thread.failure) == (10, 9, 0, None)


def test_a_reader_that_waits_skips_none():
    slot = NewestSlot[WaitingFrame]()
    thread = ReadingThread(frames(50), slot, wait=True)
    thread.start()
    assert [slot.take().frame.number for _ in range(50)] == list(range(50))
    assert slot.take() is None
    assert thread.skipped == 0


def test_the_limit_of_a_file_counts_in_its_own_time():
    slot = NewestSlot[WaitingFrame]()
    thread = ReadingThread(frames(4), slot, per_s=5.0, pace=True, wait=True)
    thread.start()
    assert [slot.take().frame.number, slot.take().frame.number, slot.take()] == [0, 2, None]
    assert (thread.read, thread.left_out) == (4, 2)


def test_the_failure_of_the_source_ends_the_slot_and_is_kept():
    def failing():
        yield DecodedFrame(0, 0.0, None, 0.0)
        raise OSError("unplugged")

    slot = NewestSlot[WaitingFrame]()
    thread = ReadingThread(failing(), slot)
    thread.start()
    assert slot.take() is not None
    assert slot.take() is None
    assert str(thread.failure) == "unplugged"


def test_a_thread_that_waits_for_its_frame_to_be_taken_can_be_stopped():
    slot = NewestSlot[WaitingFrame]()
    thread = ReadingThread(frames(1000), slot, wait=True)
    thread.start()
    slot.take()
    thread.stop(FeedSettings(stop_s=20.0))
    assert not thread.is_alive()
