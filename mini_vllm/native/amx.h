/* Products of many rows by AMX, at nearly the accuracy of float32. A number is the sum of two bfloat16s: hi is the number
   rounded, lo is what that leaves. So x * w = x_hi * w_hi + x_lo * w_hi + x_hi * w_lo, but for 1 / 2**17.

   A tile is 16 rows of 64 bytes. An instruction multiplies 16 rows of 32 numbers (a tile of x) by 32 numbers of 16 outs
   (a tile of weights: each of its rows has two adjacent numbers of every out), and adds that to 16 rows of 16 floats. */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Words of two numbers in a tile; with fewer rows, splitting weights costs more than it saves; numbers of a strip that stay
   in the second-level cache. */
enum { TILE = 256, LEAST_ROWS = 10, MOST_INS = 768 };

/* Linux lets a process use tiles when it asks; every thread says which shapes they have. */
int may_use_tiles(void) { return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */); }

static void begin_tiles(int rows) {
    struct { uint8_t palette, start, zeros[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = i < 6 ? least(rows, 16) : 16; /* 6 and 7: weights */
    _tile_loadconfig(&shapes);
}

static void end_tiles(void) { _tile_release(); }

static inline ints pair(ints even, ints odd) { return (ints)((words)even >> 16) | (odd & -65536); }
static inline ints rest(ints x, ints high) { return (ints)((vec)x - (vec)(high & -65536)); }

/* Split row ``row`` of x, ``ins`` numbers wide, into tiles [rows / 16][ins / 32][hi, lo]. */
static void split_row(const float *x, int row, int ins, uint32_t *tiles) {
    for (int k = 0; k < ins; k += 32) {
        uint32_t *to = tiles + ((long)row / 16 * ins + k) / 32 * 2 * TILE + row % 16 * 16;
        __m512 first = _mm512_loadu_ps(x + k), second = _mm512_loadu_ps(x + k + 16);
        __m512i high = (__m512i)_mm512_cvtne2ps_pbh(second, first);
        first -= (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16);
        second -= (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16);
        _mm512_storeu_si512(to, high);
        _mm512_storeu_si512(to + TILE, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    }
}

/* Split numbers [count][WIDE] of a strip into tiles [count / 32][two of 16 outs][hi, lo]. */
static void split_strip(const float *numbers, int count, uint32_t *tiles) {
    for (int k = 0; k < count; k += 2)
        for (int side = 0; side < 2; side++) {
            const ints *from = (const ints *)(numbers + k * WIDE + side * LANES);
            ints even = from[0], odd = from[2], high_even = even + 0x8000, high_odd = odd + 0x8000; /* rounded, in the upper half */
            ints *to = (ints *)(tiles + (k / 32 * 2 + side) * 2 * TILE) + k % 32 / 2;
            to[0] = pair(high_even, high_odd);
            to[LANES] = pair(rest(even, high_even), rest(odd, high_odd));
        }
}

/* Return numbers first … first + count of a strip as tiles; ``space`` holds them if the matrix does not. */
static const uint32_t *tiles_of(const Matrix *m, int strip, int first, int count, uint32_t *space) {
    float numbers[DEPTH * WIDE] __attribute__((aligned(64)));
    if (m->bits == IN_TILES) return (const uint32_t *)m->numbers + ((long)strip * m->ins + first) * WIDE;
    for (int k = 0, some; k < count; k += some) {
        some = least(count - k, DEPTH);
        split_strip(unpack(m, strip, first + k, some, numbers), some, space + k * WIDE);
    }
    return space;
}

/* Return number k of an out whose matrix is in tiles. */
static float number_in_tiles(const Matrix *m, int out, int k) {
    const uint32_t *high = (const uint32_t *)m->numbers + ((long)out / WIDE * m->ins + k / 32 * 32) * WIDE
                           + out % WIDE / 16 * 2 * TILE + k % 32 / 2 * 16 + out % 16;
    union { uint32_t bits; float number; } hi = {high[0] >> k % 2 * 16 << 16}, lo = {high[TILE] >> k % 2 * 16 << 16};
    return hi.number + lo.number;
}

/* out[16 or 32 rows][WIDE] = x @ strip, both as tiles; with ``add``, that is added. ``next`` leads to the next 16 rows of x. */
INLINE void multiply_tiles(const int two, int steps, int add, const uint32_t *x, long next, const uint32_t *strip,
                           float *out, long out_stride) {
    float *below = out + 16 * out_stride;
#define FOR_SUMS(does) { does(0, out, 4 * out_stride); does(1, out + 16, 4 * out_stride); \
        if (two) { does(2, below, 4 * out_stride); does(3, below + 16, 4 * out_stride); } }
#define ZERO(tile, from, stride) _tile_zero(tile)
#define LOAD_STRIP(from) { _tile_loadd(6, from, 64); _tile_loadd(7, (from) + 2 * TILE, 64); }
#define LOAD_X(from) { _tile_loadd(4, from, 64); if (two) _tile_loadd(5, (from) + next, 64); }
#define ADD_PRODUCTS() { _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); \
        if (two) { _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); } }
    if (add) FOR_SUMS(_tile_loadd) else FOR_SUMS(ZERO)
    for (; steps > 0; steps--, x += 2 * TILE, strip += 4 * TILE) {
        LOAD_STRIP(strip) LOAD_X(x + TILE) ADD_PRODUCTS() /* hi of the weights, lo of x */
        LOAD_X(x) ADD_PRODUCTS()
        LOAD_STRIP(strip + TILE) ADD_PRODUCTS() /* lo of the weights */
    }
    FOR_SUMS(_tile_stored)
}

/* The same as ``project``. Rows are computed up to a multiple of 16. */
static void project_by_tiles(const Matrix *m, int rows, float *out, int add, const uint32_t *x_tiles) {
    uint32_t space[MOST_INS * WIDE] __attribute__((aligned(64)));
    long next = (long)m->ins / 32 * 2 * TILE, stride = padded(m->outs);
    int num_strips = stride / WIDE;
    FOR_PIECES(strip, num_strips) {
        for (int k = 0; k < m->ins; k += MOST_INS) {
            int count = least(m->ins - k, MOST_INS), adds = add || k;
            const uint32_t *tiles = tiles_of(m, strip, k, count, space);
            for (int row = 0; row < rows; row += 32) {
                const uint32_t *from = x_tiles + row / 16 * next + k / 32 * 2 * TILE;
                float *to = out + row * stride + strip * WIDE;
                if (rows - row > 16) multiply_tiles(1, count / 32, adds, from, next, tiles, to, stride);
                else multiply_tiles(0, count / 32, adds, from, next, tiles, to, stride);
            }
        }
        for (int row = 0; m->bias && row < rows; row++)
            for (int half = 0; half < WIDE; half += LANES)
                *(vec *)(out + row * stride + strip * WIDE + half) += at(m->bias + strip * WIDE + half);
    }
    meet();
}
#else
enum { LEAST_ROWS = 0 };
int may_use_tiles(void) { return 0; }
static void begin_tiles(int rows) { (void)rows; }
static void end_tiles(void) {}
static float number_in_tiles(const Matrix *m, int out, int k) { return (void)m, (void)out, (void)k, 0; }
static void split_row(const float *x, int row, int ins, uint32_t *tiles) { (void)x, (void)row, (void)ins, (void)tiles; }
static void project_by_tiles(const Matrix *m, int rows, float *out, int add, const uint32_t *x_tiles) {
    (void)m, (void)rows, (void)out, (void)add, (void)x_tiles;
}
#endif
