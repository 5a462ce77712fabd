// 16 tokens' keys and values of one KV head, as the lanes of a warp read them: lane 4g + t has of keys g and g + 8 every
// fourth eight numbers, and of values 2t, 2t + 1, 2t + 8 and 2t + 9 every eighth eight.
template <int HEAD_DIM> struct Tokens {
  uint4 key[2][HEAD_DIM / 32], value[HEAD_DIM / 64][4];
};

// The tokens lie in one block, the first is at `first`. What is not in [begin, end) has values of zero: a weight of zero
// would not do away with what is not a number.
template <int HEAD_DIM, int BLOCK_SIZE, typename T>
FUNCTION Tokens<HEAD_DIM> read_tokens(const T* pool, const int* table, int kv_heads, int kv_head, int first, int begin,
                                      int end, int g, int t) {
  const long block_id = table[first / BLOCK_SIZE];
  const T* keys = pool + ((block_id * 2 * kv_heads + kv_head) * BLOCK_SIZE + first % BLOCK_SIZE) * HEAD_DIM;
  const T* values = keys + (long)kv_heads * BLOCK_SIZE * HEAD_DIM;
  Tokens<HEAD_DIM> tokens;
  for (int eight = 0; eight < 2; ++eight)
    for (int piece = 0; piece < HEAD_DIM / 32; ++piece)
      tokens.key[eight][piece] = read_words(keys + (eight * 8 + g) * HEAD_DIM + piece * 32 + t * 8);
  for (int stripe = 0; stripe < HEAD_DIM / 64; ++stripe)
    for (int i = 0; i < 4; ++i)
      tokens.value[stripe][i] = read_words(values + (i / 2 * 8 + t * 2 + i % 2) * HEAD_DIM + stripe * 64 + g * 8);
  if (first < begin || first + 16 > end) {
    for (int stripe = 0; stripe < HEAD_DIM / 64; ++stripe)
      for (int i = 0; i < 4; ++i) {
        const int position = first + i / 2 * 8 + t * 2 + i % 2;
        if (position < begin || position >= end) tokens.value[stripe][i] = make_uint4(0, 0, 0, 0);
      }
  }
  return tokens;
}
