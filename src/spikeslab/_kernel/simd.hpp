// Vectors as wide as the instruction set this file is compiled for, and 2^x on doubles.
//
// Everything here has internal linkage: the including file is compiled once per instruction set, and the
// linker must never merge a copy made for a newer CPU into the code of an older one.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
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
SPIKESLAB_INLINE Vec minimum(Vec a, Vec b) { return a < b ? a : b; }

// 1 / sqrt(x) of positive numbers to a unit or two in the last place.
SPIKESLAB_INLINE Vec inverse_root(Vec x) {
#if defined(__AVX512F__)
  Vec y = (Vec)_mm512_maskz_rsqrt14_pd(0xff, (__m512d)x);  // without a mask GCC 12 warns
  const Vec half = x * -0.5;
  y *= (half * y) * y + 1.5;
  return y * ((half * y) * y + 1.5);
#else
  Vec y;
  for (int l = 0; l < kLanes; l++) y[l] = __builtin_sqrt(x[l]);
  return 1.0 / y;
#endif
}

// Floats, twice as many.
constexpr int kFloats = 2 * kLanes;
typedef float VecF __attribute__((vector_size(kFloats * sizeof(float)), may_alias));
typedef int BitsF __attribute__((vector_size(kFloats * sizeof(float)), may_alias));

SPIKESLAB_INLINE VecF broadcast_float(float x) { return x - VecF{}; }
SPIKESLAB_INLINE VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
SPIKESLAB_INLINE void store(float* p, VecF x) { *reinterpret_cast<VecF*>(p) = x; }
SPIKESLAB_INLINE VecF maximum(VecF a, VecF b) { return a > b ? a : b; }
SPIKESLAB_INLINE VecF minimum(VecF a, VecF b) { return a < b ? a : b; }

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
