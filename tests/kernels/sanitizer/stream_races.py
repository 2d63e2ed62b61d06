"""Races between kernels of different streams."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .planted import F, I, ones, planted, zeros

planted = planted("race between streams", "race between streams: byte")


@cuda.jit
def scale(x):
    x[cuda.grid(1)] *= 2  # fault


@cuda.jit
def move(x, y):
    y[cuda.grid(1)] = x[cuda.grid(1)]  # fault


@cuda.jit
def fill(x, value):
    x[cuda.grid(1)] = value  # fault


@cuda.jit
def count(x):
    cuda.atomic.add(x, 0, 1)  # fault


@cuda.jit
def scale_rows(x):
    x[cuda.threadIdx.y, cuda.threadIdx.x] *= 2  # fault


HELPERS = (scale, move, fill, count, scale_rows)


def array(n=32, dtype=F):
    return cuda.to_device(np.ones(n, dtype))


def streams(n=2):
    return [cuda.stream() for _ in range(n)]


def order(first, second):
    """Let a stream wait for what another one has been given."""
    event = cuda.event()
    event.record(first)
    event.wait(second)


@planted
def read_before_it_is_written(right):
    x, y, (a, b) = array(), array(), streams()
    scale[1, 32, a](x)
    if right:
        order(a, b)
    move[1, 32, b](x, y)


@planted
def written_while_it_is_read(right):
    x, y, (a, b) = array(), array(), streams()
    move[1, 32, a](x, y)
    if right:
        a.synchronize()
    fill[1, 32, b](x, 3)


@planted
def written_twice(right):
    x, (a, b) = array(), streams()
    fill[1, 32, a](x, 3)
    fill[1, 32, a if right else b](x, 4)


@planted
def an_event_that_was_recorded_too_early(right):
    x, y, (a, b), event = array(), array(), streams(), cuda.event()
    if not right:
        event.record(a)
    scale[1, 32, a](x)
    if right:
        event.record(a)
    event.wait(b)
    move[1, 32, b](x, y)


@planted
def an_event_of_another_stream(right):
    x, y, (a, b, c), event = array(), array(), streams(3), cuda.event()
    scale[1, 32, a](x)
    event.record(a if right else c)
    event.wait(b)
    move[1, 32, b](x, y)


@planted
def another_stream_waits(right):
    x, y, (a, b, c), event = array(), array(), streams(3), cuda.event()
    scale[1, 32, a](x)
    event.record(a)
    event.wait(b if right else c)
    move[1, 32, b](x, y)


@planted
def an_event_that_is_waited_for_before_it_is_recorded(right):
    x, y, (a, b), event = array(), array(), streams(), cuda.event()
    if not right:
        event.wait(b)
    scale[1, 32, a](x)
    event.record(a)
    if right:
        event.wait(b)
    move[1, 32, b](x, y)


@planted
def one_of_two_that_are_joined(right):
    """x comes from stream a, y from b; the last kernel reads both."""
    x, y, (a, b, c) = array(), array(), streams(3)
    scale[1, 32, a](x)
    fill[1, 32, b](y, 5)
    order(a, c)
    if right:
        order(b, c)
    move[1, 32, c](x, y)


@planted
def a_fork_without_a_join(right):
    x, y, z, (a, b) = array(), array(), array(), streams()
    scale[1, 32, a](x)
    order(a, b)
    move[1, 32, a](x, y)
    move[1, 32, b](x, z)
    if right:
        order(b, a)
    scale[1, 32, a](z)


@planted
def atomic_and_plain(right):
    x, y, (a, b) = array(1), array(1), streams()
    count[4, 32, a](x)
    if right:
        a.synchronize()
    move[1, 1, b](x, y)


@planted
def parts_that_overlap(right):
    x, (a, b) = array(64), streams()
    scale[1, 32, a](x[:32])
    scale[1, 32, b](x[32:] if right else x[31:63])


@planted
def the_host_waits_for_the_wrong_stream(right):
    x, y, (a, b) = array(), array(), streams()
    scale[1, 32, a](x)
    (a if right else b).synchronize()
    move[1, 32, b](x, y)


@planted
def an_event_that_is_recorded_again(right):
    """The second record replaces the first one, whose stream nobody waits for any more."""
    x, y, (a, b, c), event = array(), array(), streams(3), cuda.event()
    scale[1, 32, a](x)
    event.record(a)
    if not right:
        event.record(c)
    event.wait(b)
    move[1, 32, b](x, y)


@planted
def a_buffer_that_is_filled_again(right):
    """Two buffers in turn: the third filling must wait for the first reading."""
    buffers, out, (a, b) = [array(), array()], array(), streams()
    read = [cuda.event(), cuda.event()]
    for k in range(4):
        if right and k >= 2:
            read[k % 2].wait(a)
        fill[1, 32, a](buffers[k % 2], k)
        order(a, b)
        move[1, 32, b](buffers[k % 2], out)
        read[k % 2].record(b)


@planted
def memory_of_the_host(right):
    x, y, (a, b) = cuda.mapped_array(32, F), array(), streams()
    x[:] = 1
    scale[1, 32, a](x)
    if right:
        order(a, b)
    move[1, 32, b](x, y)


@planted
def managed_memory(right):
    x, (a, b) = cuda.managed_array(32, F), streams()
    x[:] = 1
    scale[1, 32, a](x)
    if right:
        a.synchronize()
    scale[1, 32, b](x)


@planted
def rows_of_two_streams(right):
    x, (a, b) = cuda.to_device(ones(8, 8)), streams()
    scale_rows[1, (8, 4), a](x[:4])
    scale_rows[1, (8, 4), b](x[4:] if right else x[3:7])


@planted
def columns_of_two_streams(right):
    x, (a, b) = cuda.to_device(ones(8, 8)), streams()
    scale_rows[1, (4, 8), a](x[:, :4])
    scale_rows[1, (4, 8), b](x[:, 4:] if right else x[:, 2:6])


@planted
def a_link_of_a_chain(right):
    """a before b before c: without the second wait, c may overtake a."""
    x, y, z, (a, b, c) = array(), array(), array(), streams(3)
    scale[1, 32, a](x)
    order(a, b)
    scale[1, 32, b](y)
    if right:
        order(b, c)
    move[1, 32, c](x, z)


@planted
def the_event_before_the_last_kernel(right):
    """The wait covers the first kernel of the stream, and not the second one."""
    x, y, (a, b), event = array(), array(), streams(), cuda.event()
    fill[1, 32, a](x, 1)
    event.record(a)
    fill[1, 32, a](y, 2)
    if right:
        event.record(a)
    event.wait(b)
    move[1, 32, b](y, x)


@planted
def a_count_of_two_streams_and_its_reader(right):
    """Atomic instructions of two streams do not race; who reads must wait for both."""
    total, y, (a, b, c) = array(1, I), array(1, I), streams(3)
    count[2, 32, a](total)
    count[2, 32, b](total)
    order(a, c)
    if right:
        order(b, c)
    move[1, 1, c](total, y)


@planted
def a_result_that_is_cleared_too_early(right):
    x, y, (a, b) = array(), cuda.to_device(zeros(32)), streams()
    move[1, 32, a](x, y)
    if right:
        cuda.synchronize()
    fill[1, 16, b](y, 0)
