"""The simulated heap against sequences whose resident pages are known."""

from __future__ import annotations

import itertools
import random

from edgeopt.memory.heap import PAGE, Block, Heap

MB = 1 << 20


def test_a_freed_block_below_another_stays_resident_and_is_used_again() -> None:
    heap = Heap(64 * MB)
    first, second = heap.allocate(10 * PAGE), heap.allocate(10 * PAGE)
    heap.free(first)
    assert heap.resident == heap.peak == 21 * PAGE  # two headers reach into one more page
    heap.allocate(10 * PAGE)
    assert heap.peak == 21 * PAGE
    heap.free(second)


def test_an_aligned_block_does_not_fit_into_the_hole_of_its_own_size() -> None:
    heap = Heap(64 * MB)
    first = heap.allocate(10 * PAGE)
    heap.allocate(16)
    heap.free(first)
    heap.allocate(10 * PAGE, aligned=True)
    assert heap.peak > 20 * PAGE


def test_a_mapping_goes_back_and_raises_the_threshold() -> None:
    heap = Heap(MB)
    large = heap.allocate(2 * MB)
    assert large.mapped
    assert heap.resident == 2 * MB
    heap.free(large)
    assert heap.resident == 0
    assert not heap.allocate(MB).mapped
    fixed = Heap(MB, fixed=True)
    fixed.free(fixed.allocate(2 * MB))
    assert fixed.allocate(MB).mapped


def test_pages_are_resident_from_the_first_write() -> None:
    heap = Heap(MB)
    block = heap.allocate(4 * MB, touch=False)
    assert heap.resident == 0
    heap.touch(block, 0, 1)
    heap.touch(block, PAGE - 1, PAGE + 1)
    assert heap.resident == 2 * PAGE


def test_trimming_gives_whole_pages_of_holes_back() -> None:
    heap = Heap(64 * MB)
    first = heap.allocate(10 * PAGE)
    kept = heap.allocate(16)
    heap.free(first)
    before = heap.resident
    heap.trim()
    assert before - heap.resident == 10 * PAGE
    heap.free(kept)


def test_blocks_never_overlap_and_the_top_comes_back() -> None:
    random_ = random.Random(5)
    heap, held = Heap(1 << 40), []
    for _ in range(2000):
        if held and random_.random() < 0.5:
            heap.free(held.pop(random_.randrange(len(held))))
        else:
            held.append(heap.allocate(random_.randrange(1, 5 * PAGE), aligned=random_.random() < 0.5))
        spans = sorted((block.start, block.start + block.size) for block in held)
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
    for block in held:
        heap.free(block)
    again = heap.allocate(PAGE)
    assert isinstance(again, Block)
    assert again.start == 0
