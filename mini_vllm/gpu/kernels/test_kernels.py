"""What can be checked of the kernels without a GPU: their sources, and the arrays that they are given."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.backend import mx
from mini_vllm.conftest import examples
from mini_vllm.gpu.kernels import add_norm, paged, rope_and_write, tables
from mini_vllm.gpu.kernels import small_batch_matmul as matmul
from mini_vllm.gpu.kernels import step_upload as upload
from mini_vllm.gpu.kernels.kernel import CUDA, METAL, Kernel, bits_of, dialect_here, read_source
from mini_vllm.gpu.kernels.paged import PoolShape

KERNELS = {kernel.name: kernel for kernel in (paged.DECODE, paged.DECODE_TILES, paged.MERGE, paged.CHUNK,
                                              paged.CHUNK_TILES, rope_and_write.TURN, add_norm.ADD_NORM, matmul.SKINNY,
                                              upload.UPLOAD)}
BOTH = [(name, dialect) for name, kernel in KERNELS.items() for dialect in (CUDA, METAL)
        if dialect is CUDA or "tensor_cores" not in kernel.headers]
HEAD_DIMS = range(paged.MIN_HEAD_DIM, paged.MAX_HEAD_DIM + 1, paged.HEAD_DIM_STEP)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 71)
#: Words of the other language that must not be in the source of one.
FOREIGN = {"cuda": r"threadgroup|simd_|\bdevice\b|metal::", "metal": r"__\w+__|__sync|__shfl|blockIdx|threadIdx|f32\b"}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


class Calls:
    """Records how a kernel is called, in place of MLX."""

    def __init__(self, monkeypatch):
        self.calls = []
        monkeypatch.setattr(Kernel, "__call__", self._note)

    def _note(self, *arguments):
        inputs, parameters, thread_blocks, num_warps, outputs = arguments[-5:]
        self.calls.append((parameters, thread_blocks, num_warps, [shape for shape, _ in outputs]))
        return [mx.zeros(shape, dtype) for shape, dtype in outputs]


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch).calls


@pytest.mark.parametrize("name, dialect", BOTH, ids=str)
def test_a_source_is_whole_and_speaks_one_language(name, dialect):
    text = without_comments(KERNELS[name].header(dialect) + KERNELS[name].source(dialect))
    for opening, closing in ("()", "{}", "[]"):
        assert text.count(opening) == text.count(closing)
    assert not re.search(FOREIGN[dialect.name], text)
    assert not re.search(r"\b(int|float|long)\s+(thread|half|kernel|device)\b", text), "a word of Metal's as a name"
    for each in (*KERNELS[name].inputs, *KERNELS[name].outputs):
        assert re.search(rf"\b{each}\b", KERNELS[name].source(dialect)), f"{each} is not used"


def test_both_languages_define_the_same_words():
    words = [re.findall(r"#define (\w+)|FUNCTION float (\w+)", read_source(dialect.name)) for dialect in (CUDA, METAL)]
    assert words[0] == words[1] and len(words[0]) == 10


def given_parameters(calls, head_dim, group, dtype):
    """Return the parameters of every kernel for one shape, by its name."""
    tiles = "_tiles" if head_dim in (64, 128) and dtype != mx.float32 and dialect_here() is CUDA else ""
    shape = PoolShape(2, group, head_dim, 16, 1.0, dtype)
    queries, pool = mx.zeros((3, 2 * group, head_dim), dtype), mx.zeros((4, 4, 16, head_dim), dtype)
    lens, table = mx.zeros((3,), mx.int32), mx.zeros((3, 8), mx.int32)
    paged.decode(queries, pool, table, lens, shape)
    paged.decode(queries[:1], pool, mx.zeros((1, 4096), mx.int32), lens[:1], shape)
    paged.attend_chunks(queries, pool, paged.ChunkArrays.of([[1], [2]], [9, 2], [1, 2], shape), shape, window=5)
    rope_and_write.turn_and_write(mx.zeros((3, (2 * group + 4) * head_dim), dtype), pool, lens, lens, lens, None, shape)
    uploads = ["upload"] * (dialect_here() is CUDA)
    names = ["decode" + tiles, "decode" + tiles, "merge", *uploads, "chunk" + tiles, "turn"]
    assert len(calls) == len(names)
    return list(zip(names, calls))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_combination_of_parameters(head_dim, calls):
    for group, dtype in itertools.product(GROUPS, paged.DTYPES):
        calls.clear()
        assert paged.can_attend(head_dim, dtype)
        for name, (parameters, thread_blocks, num_warps, _) in given_parameters(calls, head_dim, group, dtype):
            used = set(re.findall(r"\b(?:[A-Z][A-Z_]+|T)\b", without_comments(KERNELS[name].body)))
            defined = set(re.findall(r"constexpr int (\w+)|, (\w+) = |#define (\w+)", KERNELS[name].body))
            known = {word for words in defined for word in words} | {
                "WARP", "UNSEEN", "DEVICE", "SHARED", "SHARED_POINTER", "BARRIER", "FUNCTION"}
            assert used - known == set(parameters), name
            assert all(count > 0 for count in thread_blocks) and num_warps * 32 <= 1024


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_what_lies_in_shared_memory_fits_into_that_of_a_mac(head_dim, group):
    for dtype, num_requests in itertools.product(paged.DTYPES, (1, 1000)):
        how = paged.Decoding.of(PoolShape(1, group, head_dim, 32, 1.0, dtype), num_requests)
        assert how.warps * how.heads * (head_dim + 2) * 4 <= paged.MAX_SHARED_BYTES
        assert how.heads <= (paged.MAX_HEADS if how.kernel is paged.DECODE else paged.MAX_TILE_HEADS)
        assert (how.num_parts - 1) * how.heads < group <= how.num_parts * how.heads
    chunking = paged.Chunking.of(PoolShape(1, group, head_dim, 32, 1.0, mx.float32))
    rows, staged = chunking.warps * chunking.rows_per_warp, 32 * (256 + 16)
    assert rows * head_dim * 4 + rows * 32 * 4 + staged <= paged.MAX_SHARED_BYTES


@pytest.mark.parametrize("head_dim, block_size, dtype, dialect, by_tiles", [
    (128, 32, mx.bfloat16, CUDA, True), (64, 16, mx.float16, CUDA, True), (128, 32, mx.float32, CUDA, False),
    (96, 32, mx.bfloat16, CUDA, False), (256, 32, mx.bfloat16, CUDA, False), (128, 8, mx.bfloat16, CUDA, False),
    (128, 24, mx.bfloat16, CUDA, False), (128, 32, mx.bfloat16, METAL, False)])
def test_tensor_cores_do_what_they_can(monkeypatch, head_dim, block_size, dtype, dialect, by_tiles):
    monkeypatch.setattr(paged, "dialect_here", lambda: dialect)
    shape = PoolShape(8, 7, head_dim, block_size, 1.0, dtype)
    chunking = paged.Chunking.of(shape)
    assert chunking.kernel is (paged.CHUNK_TILES if by_tiles else paged.CHUNK)
    assert not by_tiles or chunking.rows_per_warp == 16, "as tensor cores have it: the kernel takes no other"
    how = paged.Decoding.of.__wrapped__(paged.Decoding, shape, 64)
    assert how.kernel is (paged.DECODE_TILES if by_tiles else paged.DECODE)
    assert (how.heads, how.num_parts) == ((7, 1) if by_tiles else (4, 2))


@pytest.mark.parametrize("num_requests, warps", [(1, 8), (16, 8), (17, 3), (256, 3)])
def test_of_many_thread_blocks_each_has_fewer_warps(monkeypatch, num_requests, warps):
    monkeypatch.setattr(paged, "dialect_here", lambda: CUDA)
    for dtype, expected in ((mx.bfloat16, warps), (mx.float32, 8)):
        shape = PoolShape(8, 2, 128, 32, 1.0, dtype)
        assert paged.Decoding.of.__wrapped__(paged.Decoding, shape, num_requests).warps == expected


@settings(max_examples=examples(40), derandomize=True)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(1, 9), st.sampled_from([32, 128, 160, 256]),
       st.sampled_from([mx.bfloat16, mx.float32]))
def test_tiles_have_every_row_once(num_queries, group, head_dim, dtype):
    shape = PoolShape(2, group, head_dim, 16, 1.0, dtype)
    how = paged.Chunking.of(shape)
    rows = how.warps * how.rows_per_warp
    found = paged.find_tiles(num_queries, shape)
    covered = [(request, row) for request, first in found.tolist()
               for row in range(first, min(first + rows, num_queries[request] * group))]
    assert sorted(covered) == [(i, row) for i, num in enumerate(num_queries) for row in range(num * group)]


@pytest.mark.parametrize("num_requests, longest, expected", [
    (1, 512, 1), (1, 1024, 1), (1, 4096, 4), (1, 131_072, 32), (16, 4096, 2), (256, 131_072, 1), (3, 10_000, 8)])
def test_long_contexts_of_few_requests_are_split(num_requests, longest, expected):
    how = paged.Decoding.of(PoolShape(8, 2, 128, 32, 1.0, mx.float32), num_requests)
    assert how.num_splits(num_requests * 8, longest) == expected


@pytest.mark.parametrize("number", [1e-6, 128 ** -0.5, 0.0, -1.5, 1.0])
def test_a_number_is_compiled_in_by_its_bytes(number):
    assert np.int32(bits_of(number)).view(np.float32) == np.float32(number)


def test_a_steps_arrays_are_brought_to_the_gpu_in_one(calls, monkeypatch):
    monkeypatch.setattr(upload, "dialect_here", lambda: CUDA)
    arrays = [np.arange(5, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(3, 2), np.zeros((0,), np.int32)]
    assert [array.shape for array in upload.uploaded(arrays)] == [(5,), (3, 2), (0,)]
    ((parameters, thread_blocks, num_warps, shapes),) = calls
    assert parameters == {"WARPS": num_warps} and thread_blocks == (1, 1, 1) and shapes == [(upload.MIN_ROOM,)]
    size = upload.MIN_ROOM + 1
    upload.upload(mx.zeros((size,), mx.int32))
    _, (num_blocks, *_), num_warps, shapes = calls[1]
    assert shapes == [(size,)] and (num_blocks - 1) * num_warps * 32 < size <= num_blocks * num_warps * 32


def test_where_memory_is_one_nothing_is_brought(calls, monkeypatch):
    monkeypatch.setattr(upload, "dialect_here", lambda: METAL)
    arrays = [np.arange(5, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(3, 2)]
    assert [found.tolist() for found in upload.uploaded(arrays)] == [array.tolist() for array in arrays] and not calls


def test_few_sizes_of_steps():
    assert [tables.round_tokens(n) for n in (1, 2, 3, 5, 9, 16, 17, 33, 250, 256, 257, 2047, 2049)] == [
        1, 2, 4, 8, 16, 16, 32, 48, 256, 256, 512, 2048, 2304]
    assert len({tables.round_tokens(n) for n in range(1, 257)}) == 20
    assert [tables.round_width(n) for n in (1, 8, 9, 16, 17, 1000)] == [8, 8, 16, 16, 32, 1024]


@settings(max_examples=examples(30), derandomize=True)
@given(st.lists(st.lists(st.lists(st.integers(1, 50), max_size=9), max_size=4), max_size=8))
def test_rows_are_what_a_new_array_would_be(history):
    rows = tables.TableRows()
    for block_tables in history:
        found = rows.update(block_tables, 4, 8)
        expected = np.zeros((4, 8), dtype=np.int32)
        expected[:len(block_tables)] = tables.padded_tables(block_tables, 8)
        assert found.tolist() == expected.tolist()


def test_a_table_that_grew_is_not_written_anew():
    rows, history = tables.TableRows(), [[5, 3], [7]]
    rows.update(history, 2, 8)
    for block_id in range(10, 15):
        history[0] = [*history[0], block_id]
        assert rows.update(history, 2, 8)[0].tolist()[:len(history[0])] == history[0]
    assert rows.num_written == 0
    rows.update([[7], [5]], 2, 8)
    assert rows.num_written == 2, "two others have their places now"


def test_requests_with_one_token_come_first():
    attention = paged.KernelAttention()
    with pytest.raises(ValueError, match=r"come first in a step, but the numbers of tokens are \[2, 1\]"):
        attention(mx.zeros((3, 2, 32)), mx.zeros((3, 4, 4, 32)), [[1], [2]], [2, 1], [0, 2, 3], 1.0)


def test_products_of_few_rows_are_for_sixteen_bits_on_cuda(monkeypatch):
    def can_multiply(num_rows, num_columns=4096, depth=1024, dtype=mx.bfloat16):
        return matmul.can_multiply(num_rows, num_columns, depth, dtype, matmul.Tiling.of(num_rows))

    monkeypatch.setattr(matmul, "dialect_here", lambda: CUDA)
    assert can_multiply(16) and not can_multiply(16, dtype=mx.float32)
    assert can_multiply(1) and can_multiply(2) and can_multiply(64) and not can_multiply(65)
    assert not can_multiply(16, num_columns=4097) and not can_multiply(16, depth=1000)
    monkeypatch.setattr(matmul, "dialect_here", lambda: METAL)
    assert not can_multiply(16)
    x, weight = mx.random.normal((4, 32)), mx.random.normal((8, 32))
    assert mx.array_equal(matmul.product(x, weight), x @ weight.T)


def test_a_row_may_be_a_matrix_of_heads(calls, monkeypatch):
    x, weight = mx.random.normal((3, 4, 32)), mx.random.normal((64, 128))
    assert mx.allclose(matmul.product_in_parts(x, weight), x.reshape(3, 128) @ weight.T) and not calls
    monkeypatch.setattr(matmul, "dialect_here", lambda: CUDA)
    matmul.product_in_parts(x.astype(mx.bfloat16), weight.astype(mx.bfloat16))
    ((_, thread_blocks, _, shapes),) = calls
    assert thread_blocks == (8, 4, 1) and shapes == [(4, 3, 64)]


@pytest.mark.parametrize("num_rows", [1, 2, 16, 17, 32, 33, 64])
@pytest.mark.parametrize("how", ["alone", "gated", "in parts"])
def test_a_product_of_few_rows_is_shared_out(calls, monkeypatch, num_rows, how):
    """Check that every column, every part of the depth and, if gated, both halves have a thread block.

    The results of its warps must fit into 48 KiB of shared memory, the default limit of a kernel.
    """
    monkeypatch.setattr(matmul, "dialect_here", lambda: CUDA)
    x, weight = mx.zeros((num_rows, 1024), mx.bfloat16), mx.zeros((4096, 1024), mx.bfloat16)
    multiply = {"alone": matmul.product, "gated": matmul.gated_product, "in parts": matmul.product_in_parts}[how]
    found = multiply(x, weight)
    ((parameters, (column_blocks, splits, _), warps, shapes),) = calls
    assert column_blocks * 8 * parameters["GROUPS"] == 4096 and 1024 % (32 * splits) == 0
    assert parameters["TILES"] * 16 >= num_rows and parameters["GATED"] == (how == "gated")
    assert warps * parameters["TILES"] * 16 * parameters["GROUPS"] * 8 * 4 <= 48 * 1024
    assert tuple(found.shape) == shapes[0] == {"alone": (num_rows, 4096), "gated": (num_rows, 2048),
                                               "in parts": (splits, num_rows, 4096)}[how]
    assert (splits > 1) == (how == "in parts") and (parameters["OUT"] == mx.float32) == (how == "in parts")
    if how == "gated":
        assert parameters["GROUPS"] % 2 == 0, "as many columns of the gate as of what it lets through"


def test_products_that_the_kernel_does_not_do_are_done_otherwise(calls, monkeypatch):
    monkeypatch.setattr(matmul, "dialect_here", lambda: CUDA)
    x, weight = mx.random.normal((65, 64)).astype(mx.bfloat16), mx.random.normal((32, 64)).astype(mx.bfloat16)
    assert mx.array_equal(matmul.product(x, weight), x @ weight.T) and matmul.gated_product(x, weight) is None
    assert mx.array_equal(matmul.product_in_parts(x, weight), x @ weight.T) and not calls
    assert matmul.product_in_parts(x[:20], weight).shape == (20, 32), "64 is too little to be cut into four"
    assert calls[0][0]["OUT"] == mx.bfloat16


def test_what_is_added_may_be_in_parts(calls):
    x = mx.zeros((5, 64), mx.bfloat16)
    for added in (x, mx.zeros((4, 5, 64))):
        add_norm.add_norm(x, added, x[0], 1e-6)
    assert [(parameters["ADDED"], parameters["PARTS"]) for parameters, *_ in calls] == [
        (mx.bfloat16, 1), (mx.float32, 4)]


@pytest.mark.parametrize("hidden_size, passes", [(8, 1), (1024, 1), (1032, 2), (8192, 8)])
def test_a_norm_keeps_what_it_has_added(calls, hidden_size, passes):
    x = mx.zeros((5, hidden_size))
    add_norm.add_norm(x, x, x[0], 1e-6)
    ((parameters, *_),) = calls
    assert parameters["PASSES"] == passes
