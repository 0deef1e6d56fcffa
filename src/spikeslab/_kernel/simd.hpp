// A vector of doubles as wide as the instruction set this file is compiled for, and 2^x on it.
//
// Everything here has internal linkage: the including file is compiled once per instruction set, and the
// linker must never merge a copy made for a newer CPU into the code of an older one.
#pragma once

#if defined(__AVX512F__)
#define SPIKESLAB_LANES 8
#elif defined(__AVX__)
#define SPIKESLAB_LANES 4
#else
#define SPIKESLAB_LANES 2
#endif

#define SPIKESLAB_INLINE static inline __attribute__((always_inline))
#define SPIKESLAB_MEMBER inline __attribute__((always_inline))
#define SPIKESLAB_LAMBDA __attribute__((always_inline))

namespace {

constexpr int kLanes = SPIKESLAB_LANES;

typedef double Vec __attribute__((vector_size(kLanes * sizeof(double)), may_alias));
typedef long long Bits __attribute__((vector_size(kLanes * sizeof(double)), may_alias));

SPIKESLAB_INLINE Vec broadcast(double x) { return x - Vec{}; }
SPIKESLAB_INLINE Vec load(const double* p) { return *reinterpret_cast<const Vec*>(p); }
SPIKESLAB_INLINE void store(double* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
SPIKESLAB_INLINE Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

// Halves until one lane is left.
template <int N>
SPIKESLAB_INLINE double sum_lanes_of(const double* x) {
  if constexpr (N == 1) {
    return *x;
  } else {
    typedef double Half __attribute__((vector_size(N / 2 * sizeof(double)), may_alias, aligned(8)));
    const Half sum = *reinterpret_cast<const Half*>(x) + *reinterpret_cast<const Half*>(x + N / 2);
    return sum_lanes_of<N / 2>(reinterpret_cast<const double*>(&sum));
  }
}
SPIKESLAB_INLINE double sum_lanes(Vec x) { return sum_lanes_of<kLanes>(reinterpret_cast<const double*>(&x)); }

template <int N>
struct Size {
  static constexpr int value = N;
};

// Calls step(Size<number of vectors>, first point) over `vectors` vectors, four together as long as there are four.
template <class Step>
SPIKESLAB_INLINE void for_groups(int vectors, Step step) {
  int v = 0;
  for (; v + 4 <= vectors; v += 4) step(Size<4>{}, v * kLanes);
  for (; v < vectors; v++) step(Size<1>{}, v * kLanes);
}

// 2^x for x < 1024, exactly 0 below the normal numbers (and for NaN). The fraction goes through the minimax
// polynomial of degree 10 on [-1/2, 1/2] (relative error 2.2e-16), the integer part is added to the exponent bits.
SPIKESLAB_INLINE Vec exp2(Vec x) {
  const Vec magic = broadcast(6755399441055744.0);  // 1.5 * 2^52: adding it rounds x to an integer in the low bits
  const Vec shifted = x + magic;
  const Vec f = x - (shifted - magic);
  Vec p = broadcast(7.037278846726901e-09);
  p = p * f + 1.0208537929657404e-07;
  p = p * f + 1.3215662835959238e-06;
  p = p * f + 1.5252658116409854e-05;
  p = p * f + 0.00015403529961127076;
  p = p * f + 0.0013333558228561767;
  p = p * f + 0.009618129108034596;
  p = p * f + 0.05550410866445883;
  p = p * f + 0.24022650695908768;
  p = p * f + 0.6931471805599497;
  p = p * f + 1.0;
  const Bits scaled = (Bits)p + ((Bits)shifted << 52);
  const Bits normal = x > broadcast(-1021.0);
  return (Vec)(scaled & normal);
}

}  // namespace
