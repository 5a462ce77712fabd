// Below every score: a token that is not seen. A number, so that the difference of two of them is one as well.
#define UNSEEN (-1e30f)
// Threads that run in step and can read each other's registers: a warp, a SIMD group.
#define WARP 32

// Eight numbers of a vector, which a thread reads at once: 16 bytes, or 32 in float32.
template <typename T> struct alignas(16) Eight { T x[8]; };

// The few of them that a lane has of a value: 1, 2 or 4.
template <typename T, int N> struct alignas(sizeof(T) * N) Few { T x[N]; };

template <typename T> FUNCTION Eight<T> read_eight(const DEVICE T* from) {
  return *reinterpret_cast<const DEVICE Eight<T>*>(from);
}

template <typename T> FUNCTION void write_eight(DEVICE T* to, Eight<T> eight) {
  *reinterpret_cast<DEVICE Eight<T>*>(to) = eight;
}

template <typename T> FUNCTION Eight<T> eight_zeros() {
  Eight<T> zeros;
  for (int i = 0; i < 8; ++i) zeros.x[i] = static_cast<T>(0.0f);
  return zeros;
}

// The sum over the lanes that hold one vector together; every one of them gets it.
template <int LANES> FUNCTION float sum_of_lanes(float x) {
  for (int mask = LANES / 2; mask > 0; mask /= 2) x += from_lane_xor(x, mask);
  return x;
}

// How many lanes hold a vector, eight numbers each: a power of two, so that some may have none.
FUNCTION constexpr int lanes_of(int head_dim) {
  return head_dim <= 32 ? 4 : head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
}

// How many numbers of a vector are brought to shared memory at once: all its lanes hold, but not more than `most`.
FUNCTION constexpr int stage_of(int head_dim, int most) {
  return lanes_of(head_dim) * 8 < most ? lanes_of(head_dim) * 8 : most;
}
