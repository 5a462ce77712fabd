// sums += a · b for tiles of 16 × 16 and 16 × 8, two numbers of 16 bits in each register.
template <typename T> FUNCTION void multiply_tiles(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                   unsigned b0, unsigned b1);

#define MULTIPLY_TILES_OF(T, NAME)                                                                                     \
  template <> FUNCTION void multiply_tiles<T>(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3,         \
                                              unsigned b0, unsigned b1) {                                              \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                                                 \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                              \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                   \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                                       \
  }

MULTIPLY_TILES_OF(__nv_bfloat16, "bf16")
MULTIPLY_TILES_OF(__half, "f16")

FUNCTION bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }

// 16 bytes: eight numbers, two in each word.
template <typename T> FUNCTION uint4 read_words(const T* from) { return *reinterpret_cast<const uint4*>(from); }
FUNCTION unsigned word_of(uint4 x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// Of two words: the first number of each, the second of each; and two numbers as a word.
FUNCTION unsigned firsts(unsigned x, unsigned y) { return __byte_perm(x, y, 0x5410); }
FUNCTION unsigned seconds(unsigned x, unsigned y) { return __byte_perm(x, y, 0x7632); }
template <typename T> FUNCTION unsigned as_word(float x, float y) {
  const Few<T, 2> both = {static_cast<T>(x), static_cast<T>(y)};
  return *reinterpret_cast<const unsigned*>(&both);
}
