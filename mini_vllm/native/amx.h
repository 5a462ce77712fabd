/* Products of many rows by AMX, at nearly the accuracy of float32. A number is the sum of two bfloat16s: hi is the number
   rounded, lo is what that leaves, rounded. So x * w = x_hi * w_hi + x_lo * w_hi + x_hi * w_lo, but for 1 / 2**16.

   A tile is 16 rows of 64 bytes. An instruction multiplies 16 rows of 32 numbers (a tile of x) by 32 numbers of 16 outs
   (a tile of weights: each of its rows has two adjacent numbers of every out), and adds that to 16 rows of 16 floats. */
enum { TILE = 256 }; /* words of two numbers */

/* Return number k of an out whose matrix is in tiles. */
static float number_in_tiles(const Matrix *m, int out, int k) {
    const uint32_t *high = (const uint32_t *)m->numbers + ((long)out / WIDE * m->ins + k / 32 * 32) * WIDE
                           + out % WIDE / 16 * 2 * TILE + k % 32 / 2 * 16 + out % 16;
    union { uint32_t bits; float number; } hi = {high[0] >> k % 2 * 16 << 16}, lo = {high[TILE] >> k % 2 * 16 << 16};
    return hi.number + lo.number;
}

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MIN_ROWS = 5,   /* for fewer, splitting weights costs more than it saves */
    MOST_INS = 768, /* tiles of a strip that are made at once: they stay in the second-level cache */
    FEW_ROWS = 32,  /* up to so many, packed numbers are multiplied as they are, */
    FEW_INS = 256   /* with so many ins at once: all tiles stay in the first-level cache */
};

/* Linux lets a process use tiles when it asks; every thread says which shapes they have. */
int may_use_tiles(void) { return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */); }

static void begin_tiles(int rows) {
    struct { uint8_t palette, start, zeros[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = i < 6 ? least(rows, 16) : 16; /* 6 and 7: weights */
    _tile_loadconfig(&shapes);
}

static void end_tiles(void) { _tile_release(); }

/* Two bfloat16s in a word, from the upper halves of two. To round, 0x8000 is added before. */
static inline ints pair(ints even, ints odd) { return (ints)((words)even >> 16) | (odd & -65536); }
static inline ints rest_of(ints x, ints high) { return (ints)((vec)x - (vec)(high & -65536)) + 0x8000; }


static const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Where a pair of numbers comes from, in rows of 16 pairs: unpacked numbers are adjacent; packed ones are half a word
   apart, so that one shift moves both to the beginnings of the word's halves. */
static inline ints order_of_pairs(int bits) {
    int apart = 16 / bits, by = __builtin_ctz(apart);
    ints first = (lanes >> by) * 2 * apart + (lanes & (apart - 1));
    return first | (first + apart) << 16;
}

/* Whether numbers are multiplied while they are packed. Then the sums of each 32 ins of x are needed, too. */
static inline int multiplies_packed(const Matrix *m, int rows) { return m->bits <= 8 && rows <= FEW_ROWS; }

/* The words of a row of x in tiles: [ins / 32][hi, lo], then the sums. */
static inline long split_size(const Matrix *m) { return m->ins + (m->ins / 32 + 15) / 16 * 16; }

/* Split row ``row`` of ``rows``, for a product with m. */
static void split_row(const float *x, int row, int rows, const Matrix *m, uint32_t *tiles) {
    __m512i order = (__m512i)order_of_pairs(multiplies_packed(m, rows) ? m->bits : 16);
    uint32_t *to = tiles + row * split_size(m);
    float *sums = (float *)(to + m->ins);
    for (int k = 0; k < m->ins; k += 32, to += 32) {
        __m512 first = _mm512_loadu_ps(x + k), second = _mm512_loadu_ps(x + k + 16);
        __m512i high = (__m512i)_mm512_cvtne2ps_pbh(second, first);
        if (multiplies_packed(m, rows)) *sums++ = sum_of(first + second);
        first -= (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16);
        second -= (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16);
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, high));
        _mm512_storeu_si512(to + 16, _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first)));
    }
}

/* Split numbers [count][WIDE] of a strip into tiles [count / 32][two of 16 outs][hi, lo]. */
static void split_strip(const float *numbers, int count, uint32_t *tiles) {
    for (int k = 0; k < count; k += 2)
        for (int side = 0; side < 2; side++) {
            const ints *from = (const ints *)(numbers + k * WIDE + side * LANES);
            ints even = from[0], odd = from[2], high_even = even + 0x8000, high_odd = odd + 0x8000;
            ints *to = (ints *)(tiles + (k / 32 * 2 + side) * 2 * TILE) + k % 32 / 2;
            to[0] = pair(high_even, high_odd);
            to[LANES] = pair(rest_of(even, high_even), rest_of(odd, high_odd));
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

/* out[16 or 32 rows][WIDE] = x @ strip, both as tiles; with ``add``, that is added. */
INLINE void multiply_tiles(const int two, int steps, int add, const uint32_t *x, long x_stride, const uint32_t *strip,
                           float *out, long out_stride) {
    float *below = out + 16 * out_stride;
#define FOR_SUMS(does) { does(0, out, 4 * out_stride); does(1, out + 16, 4 * out_stride); \
        if (two) { does(2, below, 4 * out_stride); does(3, below + 16, 4 * out_stride); } }
#define ZERO(tile, from, stride) _tile_zero(tile)
#define LOAD_STRIP(from) { _tile_loadd(6, from, 64); _tile_loadd(7, (from) + 2 * TILE, 64); }
#define LOAD_X(from) { _tile_loadd(4, from, 4 * x_stride); if (two) _tile_loadd(5, (from) + 16 * x_stride, 4 * x_stride); }
#define ADD_PRODUCTS() { _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); \
        if (two) { _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); } }
    if (add) FOR_SUMS(_tile_loadd) else FOR_SUMS(ZERO)
    for (; steps > 0; steps--, x += 32, strip += 4 * TILE) {
        LOAD_STRIP(strip) LOAD_X(x + 16) ADD_PRODUCTS() /* hi of the weights, lo of x */
        LOAD_X(x) ADD_PRODUCTS()
        LOAD_STRIP(strip + TILE) ADD_PRODUCTS() /* lo of the weights */
    }
    FOR_SUMS(_tile_stored)
}

/* Turn packed numbers of a strip into tiles [two of 16 outs][count / 32]: whole numbers up to 255 are bfloat16s. Meanwhile,
   fetch what is ``ahead``. */
INLINE void unpack_tiles(const int bits, const ints *word, int count, uint32_t *tiles, long ahead) {
    const int apart = 16 / bits; /* as in order_of_pairs */
    ints even = 2 * lanes & 15;
    ints table = pair((ints)__builtin_convertvector(even, vec), (ints)__builtin_convertvector(even + 1, vec)); /* 0 to 15, twice */
    for (int k = 0; k < count; k += 64 / bits / 2, word += 2)
        for (int side = 0; side < 2; side++) {
            ints *to = (ints *)(tiles + (side * count + k) / 32 * TILE) + k % 32 / 2;
            __builtin_prefetch(word + ahead + side);
            UNROLL for (int i = 0; i < apart; i++) {
                ints numbers = word[side] >> i * bits, right = numbers & 255, left = numbers >> 16 & 255;
                if (bits == 4) to[i] = (ints)_mm512_permutexvar_epi16((__m512i)numbers, (__m512i)table); /* 5 bits are the index */
                else to[i] = pair((ints)__builtin_convertvector(right, vec), (ints)__builtin_convertvector(left, vec));
            }
        }
}

/* out[16 rows][16 outs] += x @ packed numbers, both as tiles. What a group adds up to is multiplied by its scales, and its
   offsets are multiplied by the sums of x. */
static void multiply_groups(int count, int group, const uint32_t *x, const float *sums, long x_stride,
                            const uint32_t *tiles, const vec *scales, int add, float *out, long out_stride) {
    _Alignas(64) vec sum[16], product[4][16], none = {0}; /* of rows that are none, what is here does not matter */
    UNROLL for (int row = 0; row < 16; row++) sum[row] = add ? at(out + row * out_stride) : none;
#define MULTIPLY_GROUP(tile, b) if (k + tile * group < count) { \
        _tile_zero(tile); \
        for (int left = group; left > 0; left -= 32, x += 32, tiles += TILE, sums++) { \
            _tile_loadd(b, tiles, 64); \
            _tile_loadd(4, x + 16, 4 * x_stride); \
            _tile_dpbf16ps(tile, 4, b); \
            _tile_loadd(5, x, 4 * x_stride); \
            _tile_dpbf16ps(tile, 5, b); \
            UNROLL for (int row = 0; row < 16; row++) sum[row] += sums[row * x_stride] * scales[4 * tile + 2]; \
        } }
#define SCALE_GROUP(tile) if (k + tile * group < count) \
        UNROLL for (int row = 0; row < 16; row++) sum[row] += product[tile][row] * scales[4 * tile];
    for (int k = 0; k < count; k += 4 * group, scales += 16) { /* four at once: a product waits for the last of its group */
        MULTIPLY_GROUP(0, 6) MULTIPLY_GROUP(1, 7) MULTIPLY_GROUP(2, 6) MULTIPLY_GROUP(3, 7)
        _tile_stored(0, product[0], 64);
        _tile_stored(1, product[1], 64);
        _tile_stored(2, product[2], 64);
        _tile_stored(3, product[3], 64);
        SCALE_GROUP(0) SCALE_GROUP(1) SCALE_GROUP(2) SCALE_GROUP(3)
    }
    UNROLL for (int row = 0; row < 16; row++) *(vec *)(out + row * out_stride) = sum[row];
}

/* Multiply x by numbers first … first + count of a strip that is packed. */
static void multiply_packed(const Matrix *m, int strip, int first, int count, int rows, const uint32_t *x, int add,
                            float *out, uint32_t *space) {
    long start = (long)strip * m->ins + first, stride = padded(m->outs);
    const ints *words = (const ints *)m->numbers + start * m->bits / 32 * 2;
    const vec *scales = (const vec *)m->scales + start / m->group * 4;
    long ahead = first + count < m->ins ? count : (long)team.size * m->ins - first; /* probably this thread's next strip */
    for (int i = 0; i < count / m->group * 4; i++) __builtin_prefetch(scales + ahead / m->group * 4 + i);
    if (m->bits == 4) unpack_tiles(4, words, count, space, ahead * 4 / 32 * 2);
    else unpack_tiles(8, words, count, space, ahead * 8 / 32 * 2);
    for (int row = 0; row < rows; row += 16, x += 16 * split_size(m), out += 16 * stride)
        for (int side = 0; side < 2; side++) {
            const float *sums = (const float *)(x + m->ins) + first / 32;
            multiply_groups(count, m->group, x + first, sums, split_size(m), space + side * count / 32 * TILE,
                            scales + side, add, out + side * LANES, stride);
        }
}

/* The same as ``project``. Rows are computed up to a multiple of 16. */
static void project_by_tiles(const Matrix *m, int rows, float *out, int add, const uint32_t *x_tiles) {
    uint32_t space[MOST_INS * WIDE] __attribute__((aligned(64)));
    long x_stride = split_size(m), stride = padded(m->outs);
    FOR_PIECES(strip, stride / WIDE) {
        float *to = out + strip * WIDE;
        for (int k = 0, count; k < m->ins; k += count) {
            int adds = add || k;
            count = least(m->ins - k, multiplies_packed(m, rows) ? FEW_INS : MOST_INS);
            if (multiplies_packed(m, rows)) {
                multiply_packed(m, strip, k, count, rows, x_tiles, adds, to, space);
                continue;
            }
            const uint32_t *tiles = tiles_of(m, strip, k, count, space);
            for (int row = 0; row < rows; row += 32) {
                const uint32_t *x = x_tiles + row * x_stride + k;
                if (rows - row > 16) multiply_tiles(1, count / 32, adds, x, x_stride, tiles, to + row * stride, stride);
                else multiply_tiles(0, count / 32, adds, x, x_stride, tiles, to + row * stride, stride);
            }
        }
        for (int row = 0; m->bias && row < rows; row++)
            for (int half = 0; half < WIDE; half += LANES)
                *(vec *)(to + row * stride + half) += at(m->bias + strip * WIDE + half);
    }
    meet();
}
#else
enum { MIN_ROWS = 0 };
int may_use_tiles(void) { return 0; }
static void begin_tiles(int rows) { (void)rows; }
static void end_tiles(void) {}
static void split_row(const float *x, int row, int rows, const Matrix *m, uint32_t *tiles) {
    (void)x, (void)row, (void)rows, (void)m, (void)tiles;
}
static void project_by_tiles(const Matrix *m, int rows, float *out, int add, const uint32_t *x_tiles) {
    (void)m, (void)rows, (void)out, (void)add, (void)x_tiles;
}
#endif
