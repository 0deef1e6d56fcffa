// Compiled once per instruction set, like walk.cpp and under the same rules.
#include "densities.hpp"

#include <math.h>
#include <string.h>

#include "simd.hpp"
#include "walk.hpp"

namespace spikeslab {
namespace SPIKESLAB_ISA {
namespace {

constexpr int kBlock = 128;
constexpr int kBlockVectors = kBlock / kLanes;
constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453, kLog2TwoPi = 2.6514961294723187;
constexpr double kNever = -1e300;  // log2 of a weight of 0

// log2 of a product of many numbers in [1, 8], with one logarithm for hundreds of them.
struct LogProduct {
  Vec product = broadcast(1.0), log2{};
  int room = kRoom;
  static constexpr int kRoom = 300;  // 8^300 is a double

  SPIKESLAB_MEMBER void multiply(Vec x) {
    product = product * x;
    if (--room == 0) flush();
  }
  void flush() {
    double values[kLanes];
    memcpy(values, &product, sizeof values);
    for (double& value : values) value = ::log2(value);
    Vec more;
    memcpy(&more, values, sizeof values);
    log2 += more;
    product = broadcast(1.0);
    room = kRoom;
  }
};

// Sums over the points, one number a lane.
template <int K>
struct SourceSums {
  Vec counts[K], first[K], second[K], curvature, log2_density;
};

template <int K>
struct Density {
  double constant[K], mean[K], precision[K];

  void set(const double* weights, const double* means, const double* variances) {
    for (int k = 0; k < K; k++) {
      constant[k] = weights[k] > 0 ? ::log2(weights[k]) - (kLog2TwoPi + ::log2(variances[k])) / 2 : kNever;
      mean[k] = means[k];
      precision[k] = 1 / variances[k];
    }
  }

  // Adds `vectors` vectors of points u; the scores go to psi. Points whose lane of `live` is 0 do not count.
  template <bool kAllLive>
  SPIKESLAB_MEMBER void add(int vectors, const double* u, double* psi, Vec live, SourceSums<K>& result,
                            LogProduct& normaliser) const {
    SourceSums<K> sums = result;
    for (int v = 0; v < vectors; v++) {
      const Vec x = load(u + v * kLanes);
      Vec q[K], slope[K], most = broadcast(2 * kNever);
      for (int k = 0; k < K; k++) {
        const Vec delta = x - mean[k];
        slope[k] = delta * precision[k];
        q[k] = constant[k] - (kLog2E / 2) * slope[k] * delta;
        most = maximum(most, q[k]);
      }
      Vec total{};
      for (int k = 0; k < K; k++) {
        q[k] = exp2(q[k] - most);
        total += q[k];
      }
      Vec inverse = 1.0 / total;
      if constexpr (!kAllLive) {
        most *= live;
        total = total * live + (1.0 - live);
        inverse *= live;
      }
      sums.log2_density += most;
      normaliser.multiply(total);
      Vec score{};
      for (int k = 0; k < K; k++) {
        q[k] *= inverse;  // responsibilities
        const Vec rx = q[k] * x;
        sums.counts[k] += q[k];
        sums.first[k] += rx;
        sums.second[k] += rx * x;
        score += q[k] * slope[k];
      }
      for (int k = 0; k < K; k++) {  // around the score: far out the slopes are large and nearly equal
        const Vec around = slope[k] - score;
        sums.curvature += q[k] * (precision[k] - around * around);
      }
      store(psi + v * kLanes, score);
    }
    result = sums;
  }
};

// u = B x for a block of points, rows of u being kBlock apart.
void unmix(const Signals& x, const double* B, long start, int points, double* u) {
  const int n = x.count;
  for (int i = 0; i < n; i++) {
    double* row = u + i * kBlock;
    memset(row, 0, sizeof(double) * kBlock);
    for (int j = 0; j < n; j++) {
      const double* signal = x.at + j * x.stride + start;
      const double weight = B[i * n + j];
      for (int p = 0; p < points; p++) row[p] += weight * signal[p];
    }
  }
}

// product[i][j] += sum over the block of psi_i u_j, lane by lane.
void add_products(int n, int vectors, const double* psi, const double* u, Vec* product) {
  for (int i = 0; i < n; i++) {
    const double* a = psi + i * kBlock;
    const auto columns = [&](auto size, int j) SPIKESLAB_LAMBDA {
      constexpr int G = decltype(size)::value;
      Vec sum[G];
      for (int g = 0; g < G; g++) sum[g] = product[i * n + j + g];
      for (int v = 0; v < vectors; v++) {
        const Vec score = load(a + v * kLanes);
        for (int g = 0; g < G; g++) sum[g] += score * load(u + (j + g) * kBlock + v * kLanes);
      }
      for (int g = 0; g < G; g++) product[i * n + j + g] = sum[g];
    };
    int j = 0;
    for (; j + 4 <= n; j += 4) columns(Size<4>{}, j);
    for (; j < n; j++) columns(Size<1>{}, j);
  }
}

template <int K>
void sum_with(const Signals& x, const Mixtures& mixtures, const DensitySums& out) {
  const int n = x.count;
  const long rows = static_cast<long>(n) * kBlock;
  constexpr long kPerSource = sizeof(SourceSums<K>) / sizeof(double), kPerDensity = sizeof(Density<K>) / sizeof(double);
  double* u = workspace(Slot::kDensities, 2 * rows + n * (kPerSource + kPerDensity) + static_cast<long>(n) * n * kLanes);
  double* psi = u + rows;
  auto* sums = reinterpret_cast<SourceSums<K>*>(psi + rows);
  auto* product = reinterpret_cast<Vec*>(sums + n);
  auto* densities = reinterpret_cast<Density<K>*>(product + static_cast<long>(n) * n);
  for (int h = 0; h < n; h++) densities[h].set(mixtures.weights + h * K, mixtures.means + h * K, mixtures.variances + h * K);
  memset(static_cast<void*>(sums), 0, sizeof(double) * (n * kPerSource + static_cast<long>(n) * n * kLanes));
  LogProduct normaliser;
  for (long start = 0; start < x.points; start += kBlock) {
    const int points = x.points - start < kBlock ? static_cast<int>(x.points - start) : kBlock;
    const int whole = points / kLanes, rest = points % kLanes, vectors = whole + (rest > 0);
    unmix(x, mixtures.unmixing, start, points, u);
    double flags[kLanes];
    for (int i = 0; i < kLanes; i++) flags[i] = i < rest;
    Vec live;
    memcpy(&live, flags, sizeof flags);
    for (int h = 0; h < n; h++) {
      const Density<K>& density = densities[h];
      double *sources = u + h * kBlock, *scores = psi + h * kBlock;
      density.template add<true>(whole, sources, scores, live, sums[h], normaliser);
      if (rest > 0)
        density.template add<false>(1, sources + whole * kLanes, scores + whole * kLanes, live, sums[h], normaliser);
    }
    add_products(n, vectors, psi, u, product);
  }
  normaliser.flush();
  double log2_density = sum_lanes(normaliser.log2);
  for (int h = 0; h < n; h++) {
    log2_density += sum_lanes(sums[h].log2_density);
    out.curvature[h] = sum_lanes(sums[h].curvature);
    for (int k = 0; k < K; k++) {
      out.counts[h * K + k] = sum_lanes(sums[h].counts[k]);
      out.first[h * K + k] = sum_lanes(sums[h].first[k]);
      out.second[h * K + k] = sum_lanes(sums[h].second[k]);
    }
  }
  *out.log_density = kLn2 * log2_density;
  for (long i = 0; i < static_cast<long>(n) * n; i++) out.score_product[i] = sum_lanes(product[i]);
}

template <int K>
void dispatch(const Signals& x, const Mixtures& mixtures, const DensitySums& out) {
  if constexpr (K > 1)
    if (mixtures.components < K) return dispatch<K - 1>(x, mixtures, out);
  sum_with<K>(x, mixtures, out);
}

}  // namespace

void sum_densities(const Signals& x, const Mixtures& mixtures, const DensitySums& out) {
  dispatch<kMostDensityComponents>(x, mixtures, out);
}

}  // namespace SPIKESLAB_ISA
}  // namespace spikeslab
