/* One step of a network of the Llama family on a CPU: all layers, for a flat batch of tokens, over paged K/V.

   Everything that costs time is one small product: up to ROWS rows of numbers times a strip of WIDE numbers per row.
   Weights are stored as strips, and a block of keys or values is read as a few:

       product         rows of                    strip of
       project         x                          weights: WIDE outs, for all ins
       scores          queries                    keys, stored [head_dim][block_size]: WIDE tokens
       attention       softmax of the scores      values, stored [block_size][head_dim]: WIDE numbers of the head

   K/V may be kept in 16 bits: whole numbers, and behind a head's numbers in a block a float for each token, its scale.

   All threads run ``compute``; every loop over pieces is shared out (team.h). The rows of a buffer are filled up to whole
   strips (``padded``), and there are a multiple of 16 rows and one more, so that strips and tiles may reach beyond; what
   they write there is never used. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "team.h"

#if defined(__AVX512F__) /* LANES: the floats in a register; ROWS: as many as have their sums in registers */
enum { LANES = 16, ROWS = 8 };
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 4 };
#elif defined(__aarch64__)
enum { LANES = 4, ROWS = 8 };
#else
enum { LANES = 4, ROWS = 4 };
#endif
enum {
    WIDE = 2 * LANES, /* numbers in a row of a strip */
    DEPTH = 128,      /* numbers of an out that are unpacked at once: they stay in the first-level cache */
    BAND = 256,       /* tokens that pass through the MLP together: of small models, they stay in the second-level cache */
    SPAN_ROWS = 32,   /* queries of a span: tokens times the heads that share a KV head */
    MIN_SHARED = 4,   /* blocks; with fewer in common, requests attend alone */
    MIXED = 16,       /* see mix */
    IN_TILES = 16,    /* the ``bits`` of a matrix in tiles */
    MAX_HEAD_DIM = 256,
    MAX_BLOCK = 128
};
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t fours __attribute__((vector_size(16), aligned(4), may_alias));
typedef int16_t shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* A matrix [outs, ins] as strips [outs / WIDE][ins][WIDE], filled up with zeros. Numbers of 4 or 8 bits are packed as in
   MLX: a word holds 8 or 4 adjacent ins of one out. A number is then multiplied by the scale of its group, and the
   offset is added: [outs / WIDE][ins / group][scale, offset][WIDE]. The bias, filled up too, may be missing. If ``bits``
   is IN_TILES, a strip is in tiles (amx.h). */
typedef struct { int outs, ins, bits, group; const void *numbers; const float *scales, *bias; } Matrix;
typedef struct { Matrix qkv, o, gate_up, down; const float *norm, *mlp_norm, *qk_norm; void *pool; int window; } Layer;
typedef struct {
    int num_layers, hidden, heads, kv_heads, head_dim, block_size;
    int in_16_bits, by_tiles; /* whether K/V have 16 bits; whether AMX multiplies */
    float eps, scale;
    const Layer *layers;
    Matrix embedding, head;
    const float *norm;
} Model;
/* Adjacent tokens, which attend together: of one request or, if num_shared is not 0, one each of as many adjacent requests,
   whose first num_shared blocks are the same. */
typedef struct { int request, token, num_tokens, num_shared; } Span;
typedef struct {
    int num_tokens, num_requests, num_wanted, table_width;
    const int *token_ids, *starts, *lengths; /* request r has tokens starts[r] to starts[r + 1], and lengths[r] with its context */
    const int *wanted, *tables;              /* tokens whose logits are wanted, ascending; [num_requests][table_width] */
    const float *angles;                              /* of each position, [head_dim / 2] cosines, then as many sines */
    float *x, *h, *qkv, *mlp, *gate_up, *logits;        /* mlp and gate_up have BAND rows */
    uint32_t *x_tiles; /* space for rows of x in tiles: split_size, for the widest x */
    Span *spans, *last_spans; /* space for num_tokens each; the last layer attends for the wanted tokens only */
    int *requests, num_spans;
    atomic_int has_nan; /* whether the last layer's keys or values contain NaN; searched for if not every token is wanted */
} Step;

static long padded(long size) { return (size + WIDE - 1) / WIDE * WIDE; }
static int least(int a, int b) { return a < b ? a : b; }
INLINE vec at(const float *from) { return *(const vec *)from; }
INLINE vec pick(ints condition, vec a, vec b) { return (vec)(((ints)a & condition) | ((ints)b & ~condition)); }
INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

/* The sum and the largest of a register's lanes: four at a time, since one lane after the other would wait for the last. */
INLINE float sum_of(vec x) {
    quad sum = {0};
    for (int i = 0; i < LANES / 4; i++) sum += ((quad *)&x)[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE float largest_of(vec x) {
    quad most = *(quad *)&x;
    for (int i = 1; i < LANES / 4; i++) {
        quad other = ((quad *)&x)[i];
        most = (quad)(((fours)other & (other > most)) | ((fours)most & ~(other > most)));
    }
    return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
}

/* e**x: 2**n times a polynomial of the rest, where n goes into the bits of the exponent. For negative x its error is at
   most 3e-7. From -87 down it is 0, from 88 up e**88; NaN stays NaN. */
INLINE vec exp_of(vec x) {
    const float shift = 1.5f * (1 << 23) + 127; /* after adding it, a float has no bits left for a fraction */
    const vec zero = {0};
    ints low = x <= -87.0f;
    x = pick(low, zero, pick(x > 88.0f, zero + 88, x)) * 1.44269504f;
    vec whole = x + shift, rest = x - (whole - shift);
    vec power = 1.00000007f + rest * (0.693146967f + rest * (0.240221197f + rest * (0.0555071328f
                + rest * (0.00967554133f + rest * 0.00132764713f))));
    return pick(low, zero, power * (vec)((ints)whole << 23));
}

/* ---- products */

/* out[rows][WIDE] += x[rows][depth] @ strip[depth][WIDE] */
typedef struct {
    int depth;
    const float *x;
    const void *strip;
    float *out;
    long x_stride, strip_stride, out_stride;
    long ahead; /* bytes to the strip of K/V that is fetched meanwhile */
} Product;
enum { WEIGHTS, FLOATS, SHORTS }; /* what the strip is: weights, or K/V in 32 or 16 bits */

INLINE vec load(const int kind, const void *from, long index) {
    if (kind != SHORTS) return at((const float *)from + index);
    return __builtin_convertvector(__builtin_convertvector(*(const shorts *)((const int16_t *)from + index), ints), vec);
}

INLINE void multiply(const int rows, const int kind, Product p) {
    const int split = rows >= 4 ? 1 : 4 / rows; /* few rows: more sums, as an addition waits for the last */
    vec sum[ROWS][2];
    UNROLL for (int i = 0; i < rows * split; i++) sum[i][0] = sum[i][1] = (vec){0};
    for (int k = 0; k + split <= p.depth; k += split)
        UNROLL for (int s = 0; s < split; s++) {
            long place = (k + s) * p.strip_stride;
            vec left = load(kind, p.strip, place), right = load(kind, p.strip, place + LANES);
            if (kind != WEIGHTS)
                for (int i = 0; i < WIDE * (kind == SHORTS ? 2 : 4); i += 64)
                    __builtin_prefetch((const char *)p.strip + place * (kind == SHORTS ? 2 : 4) + i + p.ahead);
            UNROLL for (int row = 0; row < rows; row++) {
                sum[row * split + s][0] += p.x[row * p.x_stride + k + s] * left;
                sum[row * split + s][1] += p.x[row * p.x_stride + k + s] * right;
            }
        }
    for (int k = p.depth - p.depth % split; k < p.depth; k++)
        UNROLL for (int row = 0; row < rows; row++) {
            sum[row * split][0] += p.x[row * p.x_stride + k] * load(kind, p.strip, k * p.strip_stride);
            sum[row * split][1] += p.x[row * p.x_stride + k] * load(kind, p.strip, k * p.strip_stride + LANES);
        }
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int s = 0; s < split; s++) {
            *(vec *)(p.out + row * p.out_stride) += sum[row * split + s][0];
            *(vec *)(p.out + row * p.out_stride + LANES) += sum[row * split + s][1];
        }
}

INLINE void multiply_all(const int kind, int rows, Product p) {
    for (; rows > 0; rows -= ROWS, p.x += ROWS * p.x_stride, p.out += ROWS * p.out_stride)
        switch (rows) {
#define CASE(n) case n: multiply(n, kind, p); break;
            CASE(1) CASE(2) CASE(3)
#if defined(__AVX512F__) || defined(__aarch64__)
            CASE(4) CASE(5) CASE(6) CASE(7)
#endif
            default: multiply(ROWS, kind, p);
        }
}

static void multiply_weights(int rows, Product p) { multiply_all(WEIGHTS, rows, p); }
static void multiply_floats(int rows, Product p) { multiply_all(FLOATS, rows, p); }
static void multiply_shorts(int rows, Product p) { multiply_all(SHORTS, rows, p); }

/* Unpack words with numbers of ``bits`` into floats [count][WIDE]. */
INLINE void unpack_words(const int bits, const ints *word, const vec *scale, int group, int count, vec *to) {
    for (int k = 0; k < count; k += group, scale += 4) {
        vec scales[2] = {scale[0], scale[1]}, offsets[2] = {scale[2], scale[3]};
        for (int i = 0; i < group * bits / 16; i++) __builtin_prefetch(word + 24 + i);
        for (int i = 0; i < 4; i++) __builtin_prefetch(scale + 12 + i);
        for (int i = 0; i < group; i += 32 / bits, word += 2)
            UNROLL for (int shift = 0; shift < 32; shift += bits, to += 2)
                UNROLL for (int half = 0; half < 2; half++) {
                    ints number = word[half] >> shift & ((1 << bits) - 1);
                    to[half] = __builtin_convertvector(number, vec) * scales[half] + offsets[half];
                }
    }
}

/* Return numbers first … first + count of a strip as floats [count][WIDE]; ``space`` holds them if they are packed. */
static const float *unpack(const Matrix *m, int strip, int first, int count, float *space) {
    long start = (long)strip * m->ins + first;
    if (m->bits == 32) return (const float *)m->numbers + start * WIDE;
    const ints *words = (const ints *)m->numbers + start * m->bits / 32 * 2;
    const vec *scales = (const vec *)m->scales + start / m->group * 4;
    if (m->bits == 4) unpack_words(4, words, scales, m->group, count, (vec *)space);
    else unpack_words(8, words, scales, m->group, count, (vec *)space);
    return space;
}

#include "amx.h"

/* Whether rows are multiplied by this matrix in tiles; then what computes them splits them. */
static int uses_tiles(const Matrix *m, int rows, const uint32_t *tiles) {
    return tiles && (m->bits == IN_TILES || (rows >= MIN_ROWS && m->ins % 32 == 0));
}

/* out[rows, outs] = x[rows, ins] @ m.T + bias; with ``add``, that is added to what ``out`` holds. ``x_tiles`` may hold x
   in tiles. */
static void project(const Matrix *m, const float *x, int rows, float *out, int add, uint32_t *x_tiles) {
    float space[DEPTH * WIDE] __attribute__((aligned(64)));
    long x_stride = padded(m->ins), out_stride = padded(m->outs);
    if (uses_tiles(m, rows, x_tiles)) {
        project_by_tiles(m, rows, out, add, x_tiles);
        return;
    }
    FOR_PIECES(strip, out_stride / WIDE) {
        float *to = out + strip * WIDE;
        for (int row = 0; row < rows; row++)
            for (int half = 0; half < WIDE; half += LANES) {
                vec *sum = (vec *)(to + row * out_stride + half), none = {0};
                *sum = (add ? *sum : none) + (m->bias ? at(m->bias + strip * WIDE + half) : none);
            }
        for (int k = 0; k < m->ins; k += DEPTH) {
            int count = least(m->ins - k, DEPTH);
            const float *numbers = unpack(m, strip, k, count, space);
            multiply_weights(rows, (Product){count, x + k, numbers, to, x_stride, WIDE, out_stride, 0});
        }
    }
    meet();
}

/* ---- everything between the products */

/* x[token] = the embedding of its id: one lane of a strip */
static void embed(const Matrix *m, const Step *s) {
    FOR_PIECES(token, s->num_tokens) {
        int lane = s->token_ids[token] % WIDE, per_word = 32 / m->bits;
        long first = (long)(s->token_ids[token] / WIDE) * m->ins;
        float *to = s->x + token * padded(m->ins);
        for (int k = 0; k < m->ins; k++)
            if (m->bits == 32) to[k] = ((const float *)m->numbers)[(first + k) * WIDE + lane];
            else if (m->bits == IN_TILES) to[k] = number_in_tiles(m, s->token_ids[token], k);
            else {
                const float *scale = m->scales + (first + k) / m->group * 2 * WIDE + lane;
                uint32_t word = ((const uint32_t *)m->numbers)[(first + k) / per_word * WIDE + lane];
                to[k] = (word >> k % per_word * m->bits & ((1u << m->bits) - 1)) * scale[0] + scale[WIDE];
            }
    }
    meet();
}

/* Return 1 / the root of the mean square. */
static float norm_of(const float *x, int size, float eps) {
    vec sums = {0};
    float sum = 0;
    int i = 0;
    for (; i + LANES <= size; i += LANES) sums += at(x + i) * at(x + i);
    for (; i < size; i++) sum += x[i] * x[i];
    return 1 / sqrtf((sum + sum_of(sums)) / size + eps);
}

/* Normalise rows for a product with m. */
static void normalise(const float *x, const float *weight, int rows, const Matrix *m, float eps, float *out,
                      uint32_t *tiles) {
    int size = m->ins;
    FOR_PIECES(row, rows) {
        const float *from = x + row * padded(size);
        float *to = out + row * padded(size), factor = norm_of(from, size, eps);
        for (int i = 0; i < size; i++) to[i] = from[i] * factor * weight[i];
        if (uses_tiles(m, rows, tiles)) split_row(to, row, rows, m, tiles);
    }
    meet();
}

/* The position of a token in its request. */
static int position_of(const Step *s, int request, int token) {
    return s->lengths[request] - (s->starts[request + 1] - token);
}

static long head_bytes(const Model *m) {
    return (m->in_16_bits ? 2L * (m->head_dim + 2) : 4L * m->head_dim) * m->block_size; /* with the scales */
}

/* Return the keys of a block for a KV head; the values follow after those of all heads. */
static char *keys_of(const Model *m, const Layer *layer, const Step *s, int request, int index, int kv_head) {
    long block = s->tables[(long)request * s->table_width + index];
    return (char *)layer->pool + (block * 2 * m->kv_heads + kv_head) * head_bytes(m);
}

/* The scales of a head's tokens, behind its numbers of 16 bits. */
static float *scales_of(const Model *m, const char *head) { return (float *)(head + 2L * m->block_size * m->head_dim); }

/* Write a token's numbers into a head of a block: from ``first`` on, ``stride`` apart. */
static void write_head(const Model *m, char *head, int offset, const float *x, long first, long stride) {
    if (!m->in_16_bits) {
        for (int i = 0; i < m->head_dim; i++) ((float *)head)[first + i * stride] = x[i];
        return;
    }
    float largest = 0, invalid = 0;
    for (int i = 0; i < m->head_dim; i++) {
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        invalid += 0 * x[i]; /* NaN if any number is NaN or infinite */
    }
    float scale = scales_of(m, head)[offset] = largest / 32767 + invalid;
    for (int i = 0; i < m->head_dim; i++)
        ((int16_t *)head)[first + i * stride] = scale > 1e-30f ? x[i] / scale + (x[i] < 0 ? -0.5f : 0.5f) : 0;
}

static void rotate(float *restrict a, float *restrict b, const float *cosine, const float *sine, int half) {
    for (int i = 0; i < half; i++) {
        float first = a[i], second = b[i];
        a[i] = first * cosine[i] - second * sine[i];
        b[i] = second * cosine[i] + first * sine[i];
    }
}

static int mixes(const Model *m) { return m->in_16_bits && m->head_dim > MIXED && !(m->head_dim & (m->head_dim - 1)); }

/* Mix runs of MIXED numbers of a query or key with each other: a Hadamard transform. This multiplies their product by
   dim / MIXED. Then few numbers of a key are much larger than the others, and 16 bits hold them more exactly. */
static void mix(float *x, int dim) {
    for (int apart = dim / 2; apart >= MIXED; apart /= 2)
        for (int start = 0; start < dim; start += 2 * apart)
            for (int i = start; i < start + apart; i++) {
                float a = x[i], b = x[i + apart];
                x[i] = a + b;
                x[i + apart] = a - b;
            }
}

/* Rotate queries and keys, and write keys and values into the blocks: keys [head_dim][block_size], so that a few of
   them are a strip, and values [block_size][head_dim]. */
static void rotate_and_write(const Model *m, const Layer *layer, Step *s, int token, int search_nan) {
    int dim = m->head_dim, half = dim / 2, rotated = m->heads + m->kv_heads;
    int request = s->requests[token], position = position_of(s, request, token), offset = position % m->block_size;
    float *heads = s->qkv + token * padded((rotated + m->kv_heads) * dim);
    const float *cosine = s->angles + (long)position * dim, *sine = cosine + half;
    for (int head = 0; head < rotated; head++) {
        float *x = heads + head * dim;
        if (layer->qk_norm) {
            float factor = norm_of(x, dim, m->eps);
            for (int i = 0; i < dim; i++) x[i] *= factor * layer->qk_norm[head * dim + i];
        }
        rotate(x, x + half, cosine, sine, half);
        if (mixes(m)) mix(x, dim);
    }
    for (int head = 0; head < m->kv_heads; head++) {
        const float *key = heads + (m->heads + head) * dim, *value = key + m->kv_heads * dim;
        char *keys = keys_of(m, layer, s, request, position / m->block_size, head);
        write_head(m, keys, offset, key, offset, m->block_size);
        write_head(m, keys + m->kv_heads * head_bytes(m), offset, value, offset * dim, 1);
        if (search_nan && m->in_16_bits)
            s->has_nan |= isnan(scales_of(m, keys)[offset] + scales_of(m, keys + m->kv_heads * head_bytes(m))[offset]);
        else if (search_nan)
            for (int i = 0; i < dim; i++) s->has_nan |= isnan(key[i]) || isnan(value[i]);
    }
}

static void rotate_and_write_all(const Model *m, const Layer *layer, Step *s, int search_nan) {
    int each = 1 + s->num_tokens / 16; /* adjacent keys are in the same cache lines: one thread writes them */
    FOR_PIECES(piece, s->num_tokens / each + 1)
        for (int token = piece * each; token < least(s->num_tokens, (piece + 1) * each); token++)
            rotate_and_write(m, layer, s, token, search_nan);
    meet();
}

/* A step of a running softmax: turn ``size`` scores into weights, and return what the sums so far must be multiplied with.
   ``top`` is the largest score so far, and ``total`` the sum of weights. Only [from, to) is seen. */
INLINE float soften(float *score, int from, int to, int size, float *top, float *total) {
    if (from > 0 || to < size)
        for (int i = 0; i < size; i++) score[i] = i < from || i >= to ? -INFINITY : score[i];
    vec largest = at(score), sums = {0};
    for (int i = LANES; i < size; i += LANES) largest = larger(largest, at(score + i));
    float before = *top, now = largest_of(largest);
    *top = now = now > before ? now : before;
    for (int i = 0; i < size; i += LANES) sums += *(vec *)(score + i) = exp_of(at(score + i) - now);
    float shrink = now > before ? exp_of((vec){0} + (before - now))[0] : 1;
    *total = *total * shrink + sum_of(sums);
    return shrink;
}

static void scale_tokens(float *score, int rows, int stride, const float *scales, int count) {
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < count; i++) score[row * stride + i] *= scales[i];
}

/* Attention of a span, for the ``group`` query heads that share a KV head: a token has a row for each of them. */
typedef struct {
    const Model *m;
    const Layer *layer;
    const Step *s;
    int kv_head, group;
    _Alignas(64) float query[SPAN_ROWS * MAX_HEAD_DIM], sum[SPAN_ROWS * MAX_HEAD_DIM], score[SPAN_ROWS * MAX_BLOCK];
    float top[SPAN_ROWS], total[SPAN_ROWS];
} Attending;

/* Attend to a request's blocks ``index`` … ``end``, with a running softmax. The first row's token is at ``position``. */
static void attend_blocks(Attending *a, int request, int row, int rows, int position, int index, int end) {
    const Model *m = a->m;
    int dim = m->head_dim, size = m->block_size, width = m->in_16_bits ? 2 : 4, window = a->layer->window;
    int dim_stride = padded(dim), blocks_at_once = size % WIDE ? 1 : MAX_BLOCK / size, last = end - 1;
    void (*product)(int, Product) = m->in_16_bits ? multiply_shorts : multiply_floats;
    const float *query = a->query + row * dim;
    float *sum = a->sum + row * dim_stride, *score = a->score;
    for (int next; index < end; index = next) {
        next = least(index + blocks_at_once, end);
        int width_of_scores = padded((next - index) * size);
        memset(score, 0, sizeof(float) * rows * width_of_scores);
        for (int block = index; block < next; block++) {
            const char *keys = keys_of(m, a->layer, a->s, request, block, a->kv_head);
            float *of_block = score + (block - index) * size;
            long ahead = keys_of(m, a->layer, a->s, request, least(block + 1, last), a->kv_head) - keys;
            for (int i = 0; i < size; i += WIDE)
                product(rows, (Product){dim, query, keys + i * width, of_block + i, dim, size, width_of_scores, ahead});
            if (m->in_16_bits) scale_tokens(of_block, rows, width_of_scores, scales_of(m, keys), size);
        }
        for (int i = 0; i < rows; i++) {
            int seen = position + i / a->group + 1 - index * size; /* tokens of these blocks up to the row's own */
            int from = window ? seen - window : 0;
            float shrink = soften(score + i * width_of_scores, from, least(seen, (next - index) * size), width_of_scores,
                                  a->top + row + i, a->total + row + i);
            if (shrink != 1)
                for (int k = 0; k < dim; k++) sum[i * dim_stride + k] *= shrink;
        }
        for (int block = index; block < next; block++) {
            const char *values = keys_of(m, a->layer, a->s, request, block, a->kv_head) + m->kv_heads * head_bytes(m);
            float *of_block = score + (block - index) * size;
            long ahead = keys_of(m, a->layer, a->s, request, least(block + 1, last), a->kv_head)
                         + m->kv_heads * head_bytes(m) - values;
            /* No value after the last row's token: it may be NaN, which a weight of 0 does not remove. */
            int count = least(position + (rows - 1) / a->group + 1 - block * size, size);
            if (m->in_16_bits) scale_tokens(of_block, rows, width_of_scores, scales_of(m, values), count);
            for (int i = 0; i < dim; i += WIDE)
                product(rows, (Product){count, of_block, values + i * width, sum + i, width_of_scores, dim, dim_stride,
                                        ahead});
        }
    }
}

static void attend_span(const Model *m, const Layer *layer, const Step *s, Span span, int kv_head, float *out) {
    int group = m->heads / m->kv_heads, rows = span.num_tokens * group, dim = m->head_dim, size = m->block_size;
    Attending a; /* without an initialiser, which would set 80 KB to 0 */
    a.m = m, a.layer = layer, a.s = s, a.kv_head = kv_head, a.group = group;
    float scale = mixes(m) ? m->scale * MIXED / dim : m->scale;
    const float *from = s->qkv + span.token * padded((m->heads + 2 * m->kv_heads) * dim) + kv_head * group * dim;
    for (int token = 0; token < span.num_tokens; token++, from += padded((m->heads + 2 * m->kv_heads) * dim))
        for (int i = 0; i < group * dim; i++) a.query[token * group * dim + i] = from[i] * scale;
    for (int row = 0; row < rows; row++) {
        a.top[row] = -1e30f; /* not -INFINITY: the difference of two would be NaN */
        a.total[row] = 0;
    }
    memset(a.sum, 0, sizeof(float) * rows * padded(dim));
    int first = position_of(s, span.request, span.token), start = span.num_shared;
    if (layer->window && first >= layer->window) start = (first - layer->window + 1) / size;
    if (span.num_shared) {
        attend_blocks(&a, span.request, 0, rows, first, 0, span.num_shared); /* all tokens come later: nothing is masked */
        for (int i = 0; i < span.num_tokens; i++) {
            int position = position_of(s, span.request + i, span.token + i);
            attend_blocks(&a, span.request + i, i * group, group, position, start, position / size + 1);
        }
    } else
        attend_blocks(&a, span.request, 0, rows, first, start, (first + span.num_tokens - 1) / size + 1);
    for (int row = 0; row < rows; row++) {
        float *to = out + (span.token + row / group) * padded(m->heads * dim) + (kv_head * group + row % group) * dim;
        for (int i = 0; i < dim; i++) to[i] = a.sum[row * padded(dim) + i] / a.total[row];
    }
}

static void attend(const Model *m, const Layer *layer, const Step *s, const Span *spans, int num_spans) {
    FOR_PIECES(i, num_spans * m->kv_heads)
        attend_span(m, layer, s, spans[i / m->kv_heads], i % m->kv_heads, s->h);
    meet();
}

/* out = silu(gate) * up, for a product with m */
static void swiglu(const float *gate_up, int rows, const Matrix *m, float *out, uint32_t *tiles) {
    int size = m->ins;
    FOR_PIECES(row, rows) {
        const float *gate = gate_up + row * padded(2 * size), *up = gate + size;
        for (int i = 0; i < size; i += LANES)
            *(vec *)(out + row * padded(size) + i) = at(gate + i) / (1 + exp_of(-at(gate + i))) * at(up + i);
        if (uses_tiles(m, rows, tiles)) split_row(out + row * padded(size), row, rows, m, tiles);
    }
    meet();
}

static void split(const float *x, int rows, const Matrix *m, uint32_t *tiles) {
    if (!uses_tiles(m, rows, tiles)) return;
    FOR_PIECES(row, rows) split_row(x + row * padded(m->ins), row, rows, m, tiles);
    meet();
}

/* Keep only the rows of the wanted tokens, which are ascending. */
static void keep(const Step *s, float *x, int size) {
    FOR_PIECES(once, 1)
        for (int i = 0; i < s->num_wanted; i++)
            memmove(x + i * padded(size), x + s->wanted[i] * padded(size), size * sizeof(float));
    meet();
}

/* ---- the step */

typedef struct { const Model *model; Step *step; } Work;

static void compute(void *of) {
    const Model *m = ((Work *)of)->model;
    Step *s = ((Work *)of)->step;
    int rows = s->num_tokens;
    uint32_t *tiles = m->by_tiles ? s->x_tiles : 0;
    if (tiles) begin_tiles(rows);
    embed(&m->embedding, s);
    for (int i = 0; i < m->num_layers; i++) {
        const Layer *layer = m->layers + i;
        int only_wanted = i == m->num_layers - 1 && s->num_wanted < s->num_tokens;
        for (int first = 0, band; first < rows; first += band) {
            band = least(rows - first, BAND);
            normalise(s->x + first * padded(m->hidden), layer->norm, band, &layer->qkv, m->eps, s->h, tiles);
            project(&layer->qkv, s->h, band, s->qkv + first * padded(layer->qkv.outs), 0, tiles);
        }
        rotate_and_write_all(m, layer, s, only_wanted);
        attend(m, layer, s, only_wanted ? s->last_spans : s->spans, only_wanted ? s->num_wanted : s->num_spans);
        if (only_wanted) {
            keep(s, s->x, m->hidden);
            keep(s, s->h, m->heads * m->head_dim);
            rows = s->num_wanted;
        }
        for (int first = 0, band; first < rows; first += band) { /* what it computes stays in the second-level cache */
            float *x = s->x + first * padded(m->hidden);
            band = least(rows - first, BAND);
            split(s->h + first * padded(layer->o.ins), band, &layer->o, tiles);
            project(&layer->o, s->h + first * padded(layer->o.ins), band, x, 1, tiles);
            normalise(x, layer->mlp_norm, band, &layer->gate_up, m->eps, s->mlp, tiles);
            project(&layer->gate_up, s->mlp, band, s->gate_up, 0, tiles);
            swiglu(s->gate_up, band, &layer->down, s->mlp, tiles);
            project(&layer->down, s->mlp, band, x, 1, tiles);
        }
    }
    normalise(s->x, m->norm, rows, &m->head, m->eps, s->h, tiles);
    project(&m->head, s->h, rows, s->logits, 0, tiles);
    if (tiles) end_tiles();
}

/* Return how many blocks of two adjacent requests with one token each are the same, up to ``most``, and come before both
   of these tokens. */
static int shared_blocks(const Model *m, const Step *s, int request, int most) {
    const int *one = s->tables + (long)request * s->table_width, *other = one + s->table_width;
    int shared = 0, shorter = least(s->lengths[request], s->lengths[request + 1]) - 1;
    while (shared < least(most, shorter / m->block_size) && one[shared] == other[shared]) shared++;
    return shared;
}

/* Add to a span of one token the tokens of the next requests, as long as they share blocks: each is then read once for all
   of them. At least four pairs of a span and a KV head remain for each thread. */
static void join(const Model *m, const Step *s, Span *span, int num_threads) {
    int max_tokens = least(SPAN_ROWS * m->kv_heads / m->heads, s->num_requests * m->kv_heads / (4 * num_threads));
    for (int i = 0; i < m->num_layers; i++)
        if (m->layers[i].window) return; /* requests with a window begin to read at different blocks */
    for (int next = span->request + 1; span->num_tokens < max_tokens && next < s->num_requests; next++) {
        int shared = shared_blocks(m, s, next - 1, span->num_tokens > 1 ? span->num_shared : s->table_width);
        if (s->starts[next + 1] - s->starts[next] > 1 || shared < MIN_SHARED) return;
        span->num_shared = shared;
        span->num_tokens++;
    }
}

/* Divide the tokens into spans; in the last layer, every wanted token is one. */
static void divide(const Model *m, Step *s, int num_threads) {
    int max_tokens = SPAN_ROWS * m->kv_heads / m->heads;
    for (int request = 0; request < s->num_requests; request++)
        for (int token = s->starts[request]; token < s->starts[request + 1]; token++) s->requests[token] = request;
    s->num_spans = 0;
    for (int token = 0; token < s->num_tokens; token += s->spans[s->num_spans++].num_tokens) {
        int request = s->requests[token], left = s->starts[request + 1] - token;
        Span *span = s->spans + s->num_spans;
        *span = (Span){request, token, least(max_tokens, left), 0};
        if (token == s->starts[request] && left == 1) join(m, s, span, num_threads);
    }
    for (int i = 0; i < s->num_wanted; i++) s->last_spans[i] = (Span){s->requests[s->wanted[i]], s->wanted[i], 1, 0};
}

#include "choose.h"

const int wide = WIDE, band = BAND, span_rows = SPAN_ROWS, max_head_dim = MAX_HEAD_DIM, max_block = MAX_BLOCK;

void run_step(const Model *m, Step *s, int num_threads) {
    divide(m, s, num_threads);
    run_in_team(num_threads, compute, &(Work){m, s});
}
