// What the kernels need of Metal; cuda.h has the same of CUDA, line by line.
#define DEVICE device
#define SHARED threadgroup
#define SHARED_POINTER threadgroup
#define FUNCTION inline
#define BARRIER() threadgroup_barrier(metal::mem_flags::mem_threadgroup)

FUNCTION float two_to(float x) { return metal::precise::exp2(x); }
FUNCTION float as_float(int bits) { return as_type<float>(bits); }
FUNCTION float inverse_root(float x) { return metal::precise::rsqrt(x); }
FUNCTION float from_lane(float x, int lane) { return metal::simd_shuffle(x, ushort(lane)); }
FUNCTION float from_lane_xor(float x, int mask) { return metal::simd_shuffle_xor(x, ushort(mask)); }
