// What a layer adds to its input, and the norm of the sum, which the next product takes in. One token a thread block.
// What is added may be there in parts, one after the other.
const int hidden_size = x_shape[1];
const long part_size = (long)x_shape[0] * hidden_size;
const long row = (long)block.x * hidden_size;
SHARED float squares_of[WARPS];

Eight<T> both[PASSES];
float squares = 0.0f;
for (int pass = 0; pass < PASSES; ++pass) {
  const int at = (pass * WARPS * WARP + thread_id) * 8;
  if (at < hidden_size) {
    Eight<ADDED> other[PARTS];
    for (int part = 0; part < PARTS; ++part) other[part] = read_eight<ADDED>(added + part * part_size + row + at);
    const Eight<T> mine = read_eight<T>(x + row + at);
    for (int i = 0; i < 8; ++i) {
      float sum = static_cast<float>(mine.x[i]);
      for (int part = 0; part < PARTS; ++part) sum += static_cast<float>(other[part].x[i]);
      both[pass].x[i] = static_cast<T>(sum);
      squares += static_cast<float>(both[pass].x[i]) * static_cast<float>(both[pass].x[i]);
    }
    write_eight<T>(total + row + at, both[pass]);
  }
}
squares = sum_of_lanes<WARP>(squares);
if (thread_id % WARP == 0) squares_of[thread_id / WARP] = squares;
BARRIER();
squares = 0.0f;
for (int warp = 0; warp < WARPS; ++warp) squares += squares_of[warp];
const float factor = inverse_root(squares / hidden_size + as_float(EPS));
for (int pass = 0; pass < PASSES; ++pass) {
  const int at = (pass * WARPS * WARP + thread_id) * 8;
  if (at < hidden_size) {
    const Eight<T> by = read_eight<T>(weight + at);
    Eight<T> scaled;
    for (int i = 0; i < 8; ++i)
      scaled.x[i] = static_cast<T>(static_cast<float>(both[pass].x[i]) * factor * static_cast<float>(by.x[i]));
    write_eight<T>(normed + row + at, scaled);
  }
}
