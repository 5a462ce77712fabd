/* Products of many rows by AMX, at nearly the accuracy of float32. A number is the sum of two bfloat16s: hi is the number
   rounded, lo is what that leaves. So x * w = x_hi * w_hi + x_lo * w_hi + x_hi * w_lo, but for 1 / 2**17.

   A tile is 16 rows of 64 bytes. An instruction multiplies 16 rows of 32 numbers (a tile of x) by 32 numbers of 16 outs
   (a tile of weights: each of its rows has two adjacent numbers of every out), and adds that to 16 rows of 16 floats. */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TILE = 256, LEAST_ROWS = 10, HAS_TILES = 1 }; /* words of two numbers in a tile; fewer rows are faster without */

/* Linux lets a process use tiles when it asks; every thread says which shapes they have. */
int may_use_tiles(void) { return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */); }

static void begin_tiles(void) {
    struct { uint8_t palette, start, zeros[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    _tile_loadconfig(&shapes);
}

static void end_tiles(void) { _tile_release(); }

static inline ints rounded(ints x) { return (x + 0x8000) & -65536; }
static inline ints pair(ints even, ints odd) { return (ints)((words)even >> 16) | odd; }
static inline ints rest(ints x, ints high) { return rounded((ints)((vec)x - (vec)high)); }

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
            ints even = from[0], odd = from[2], high_even = rounded(even), high_odd = rounded(odd);
            ints *to = (ints *)(tiles + (k / 32 * 2 + side) * 2 * TILE) + k % 32 / 2;
            to[0] = pair(high_even, high_odd);
            to[LANES] = pair(rest(even, high_even), rest(odd, high_odd));
        }
}

/* out[16 or 32 rows][WIDE] += x @ strip, both as tiles; ``next`` leads to the next 16 rows of x. */
INLINE void multiply_tiles(const int two, int steps, const uint32_t *x, long next, const uint32_t *strip, float *out,
                           long out_stride) {
    float *below = out + 16 * out_stride;
#define FOR_SUMS(does) { does(0, out, 4 * out_stride); does(1, out + 16, 4 * out_stride); \
        if (two) { does(2, below, 4 * out_stride); does(3, below + 16, 4 * out_stride); } }
#define LOAD_STRIP(from) { _tile_loadd(6, from, 64); _tile_loadd(7, (from) + 2 * TILE, 64); }
#define LOAD_X(from) { _tile_loadd(4, from, 64); if (two) _tile_loadd(5, (from) + next, 64); }
#define ADD_PRODUCTS() { _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); \
        if (two) { _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); } }
    FOR_SUMS(_tile_loadd)
    for (; steps > 0; steps--, x += 2 * TILE, strip += 4 * TILE) {
        LOAD_STRIP(strip) LOAD_X(x + TILE) ADD_PRODUCTS() /* hi of the weights, lo of x */
        LOAD_X(x) ADD_PRODUCTS()
        LOAD_STRIP(strip + TILE) ADD_PRODUCTS() /* lo of the weights */
    }
    FOR_SUMS(_tile_stored)
}

/* out[rows][WIDE] += x[rows][from k: count] @ numbers[count][WIDE], where x was split into tiles. Rows are computed up to
   a multiple of 16. */
static void multiply_by_tiles(int rows, int count, const uint32_t *x_tiles, int k, int ins, const float *numbers, float *out,
                              long out_stride) {
    uint32_t strip[DEPTH * WIDE] __attribute__((aligned(64)));
    long next = (long)ins / 32 * 2 * TILE;
    split_strip(numbers, count, strip);
    for (const uint32_t *x = x_tiles + k / 32 * 2 * TILE; rows > 0; rows -= 32, x += 2 * next, out += 32 * out_stride)
        if (rows > 16) multiply_tiles(1, count / 32, x, next, strip, out, out_stride);
        else multiply_tiles(0, count / 32, x, next, strip, out, out_stride);
}
#else
enum { LEAST_ROWS = 0, HAS_TILES = 0 };
int may_use_tiles(void) { return 0; }
static void begin_tiles(void) {}
static void end_tiles(void) {}
static void split_row(const float *x, int row, int ins, uint32_t *tiles) { (void)x, (void)row, (void)ins, (void)tiles; }
static void multiply_by_tiles(int rows, int count, const uint32_t *x_tiles, int k, int ins, const float *numbers, float *out,
                              long out_stride) {
    (void)rows, (void)count, (void)x_tiles, (void)k, (void)ins, (void)numbers, (void)out, (void)out_stride;
}
#endif
