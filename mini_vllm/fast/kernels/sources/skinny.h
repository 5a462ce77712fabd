// The product of a few rows with a matrix: out[r, n] = Σ x[r, k] · weight[n, k]. For CUDA only; Metal has MLX's own.
//
//   thread blocks   x: eight of the columns n
//   warps           each takes every WARPS-th piece of 32 along k; what they found is added up in the end
//
// Tensor cores multiply tiles of 16 × 16 with tiles of 16 × 8, and want the numbers of a tile strewn over the lanes of a
// warp: lane 4g + t has numbers 2t, 2t + 1, 2t + 8 and 2t + 9 of row g. Which numbers along k these are is all the same,
// as long as both factors agree. So a lane reads eight that lie side by side, 16 bytes, which serve two products:
//
//   lane 4g + t    k = 8t + 0 1 │ 2 3 │ 4 5 │ 6 7
//   first product      ╰ 2t… ╯ ╰2t+8…╯
//   second product                      ╰ 2t… ╯ ╰2t+8…╯
const int num_rows = sizes[0], num_columns = sizes[1], depth = sizes[2];
const int warp = thread_id / WARP, lane = thread_id % WARP, g = lane / 4, t = lane % 4;
const int column = block.x * 8 + g;

float sums[TILES][4];
for (int tile = 0; tile < TILES; ++tile)
  for (int i = 0; i < 4; ++i) sums[tile][i] = 0.0f;

#pragma unroll 4
for (int k = warp * 32 + t * 8; k < depth; k += WARPS * 32) {
  const uint4 w = *reinterpret_cast<const uint4*>(weight + (long)column * depth + k);
  for (int tile = 0; tile < TILES; ++tile) {
    const int row = tile * 16 + g;
    uint4 upper = make_uint4(0, 0, 0, 0), lower = upper;
    if (row < num_rows) upper = *reinterpret_cast<const uint4*>(x + (long)row * depth + k);
    if (row + 8 < num_rows) lower = *reinterpret_cast<const uint4*>(x + (long)(row + 8) * depth + k);
    multiply_tiles<T>(sums[tile], upper.x, lower.x, upper.y, lower.y, w.x, w.y);
    multiply_tiles<T>(sums[tile], upper.z, lower.z, upper.w, lower.w, w.z, w.w);
  }
}

SHARED float found[WARPS][TILES * 16][8];
for (int tile = 0; tile < TILES; ++tile)
  for (int i = 0; i < 4; ++i) found[warp][tile * 16 + g + i / 2 * 8][t * 2 + i % 2] = sums[tile][i];
BARRIER();
for (int i = thread_id; i < num_rows * 8; i += WARPS * WARP) {
  float total = 0.0f;
  for (int each = 0; each < WARPS; ++each) total += found[each][i / 8][i % 8];
  out[(long)(i / 8) * num_columns + block.x * 8 + i % 8] = static_cast<T>(total);
}
