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
