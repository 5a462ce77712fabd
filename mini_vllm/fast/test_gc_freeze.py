"""The objects that the garbage collector is told to ignore."""

import gc

from mini_vllm.fast.gc_freeze import leave_what_is_there_alone


def test_what_is_there_is_left_alone_and_what_comes_is_not():
    class Node:
        pass

    before, gone = Node(), []
    leave_what_is_there_alone()
    assert not any(each is before for each in gc.get_objects()), "it is not searched any more"
    after = Node()
    after.self = after
    after.end = type("End", (), {"__del__": lambda self: gone.append(True)})()
    del after
    gc.collect()
    assert gone == [True]
