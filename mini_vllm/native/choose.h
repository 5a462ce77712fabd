/* Choosing tokens: the likeliest, or one drawn by the Gumbel-max trick (sampler.py) with the numbers of MLX's generator.

   The noise -log(-log(1 - u)) of a random number u is less than -log(u), which u's exponent bounds. So logarithms are
   computed only for the few tokens that may beat the best one so far. */
typedef struct { float temperature; uint32_t key[2]; int token; float largest; } Choice; /* largest logit; NaN if any is */

/* Threefry-2x32 with 20 rounds: two counters become two random words. */
INLINE void scramble(const uint32_t *key, words *a, words *b) {
    static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
    *a += keys[0];
    *b += keys[1];
    UNROLL for (int i = 0; i < 5; i++) {
        UNROLL for (int k = 0; k < 4; k++) {
            int shift = rotations[i % 2][k];
            *a += *b;
            *b = (*b << shift | *b >> (32 - shift)) ^ *a;
        }
        *a += keys[(i + 1) % 3];
        *b += keys[(i + 2) % 3] + i + 1;
    }
}

static float noise_of(uint32_t bits) {
    float u = bits * 0x1p-32f;
    return -logf(-log1pf(-(u < 0x1p-33f ? 0x1p-33f : u > 0x1.fffffep-1f ? 0x1.fffffep-1f : u)));
}

/* Return the first ``count`` numbers from here; the lane_numbers after them are -INFINITY. */
INLINE vec take(const float *from, int count) {
    if (count >= LANES) return at(from);
    vec some = (vec){0} - INFINITY;
    for (int i = 0; i < count; i++) some[i] = from[i];
    return some;
}

static int any(ints condition) {
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= condition[i];
    return found;
}

static void choose_token(const float *logits, int size, Choice *c) {
    vec top = (vec){0} - INFINITY;
    ints is_nan = {0};
    words lane_numbers;
    for (int i = 0; i < LANES; i++) lane_numbers[i] = i;
    for (int i = 0; i < size; i += LANES) {
        vec some = take(logits + i, size - i);
        top = larger(top, some);
        is_nan |= some != some;
    }
    c->largest = any(is_nan) ? NAN : largest_of(top);
    c->token = 0;
    if (c->temperature == 0) {
        while (c->token < size - 1 && logits[c->token] != c->largest) c->token++;
        return;
    }
    /* The generator's counters are i and middle + i, and for the middle one of an odd number i and 0. */
    int half = size / 2, middle = size - half, best_token[2] = {0, middle};
    float best[2] = {-INFINITY, -INFINITY};
    for (int i = 0; i < middle; i += LANES) {
        words bits[2] = {lane_numbers + i, lane_numbers + middle + i};
        if (half < middle && half - i < LANES) bits[1][half - i] = 0;
        scramble(c->key, bits, bits + 1);
        for (int part = 0; part < 2; part++) {
            int start = part * middle + i;
            vec score = (take(logits + start, (part ? size : middle) - start) - c->largest) / c->temperature;
            ints exponent = ((ints)__builtin_convertvector(bits[part], vec) >> 23) - 127 - 32;
            ints may_win = score - __builtin_convertvector(exponent, vec) * 0.6931472f + 1e-5f > best[part];
            if (any(may_win))
                for (int lane = 0; lane < LANES; lane++) {
                    float sum = may_win[lane] ? score[lane] + noise_of(bits[part][lane]) : -INFINITY;
                    if (sum > best[part]) {
                        best[part] = sum;
                        best_token[part] = start + lane;
                    }
                }
        }
    }
    c->token = best_token[best[1] > best[0]];
}

typedef struct { const float *logits; int num_rows, size; Choice *choices; } Choices;

static void choose_all(void *of) {
    const Choices *c = of;
    FOR_PIECES(row, c->num_rows) choose_token(c->logits + (long)row * c->size, c->size, c->choices + row);
    meet();
}

void choose_tokens(const float *logits, int num_rows, int size, Choice *choices, int num_threads) {
    if (num_threads > 1) run_in_team(num_threads, choose_all, &(Choices){logits, num_rows, size, choices});
    else
        for (int row = 0; row < num_rows; row++) choose_token(logits + (long)row * size, size, choices + row);
}
