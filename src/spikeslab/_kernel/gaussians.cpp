// Compiled once per instruction set, like walk.cpp and under the same rules. The maths is in gaussians.hpp.
#include "gaussians.hpp"

#include <math.h>

#include "simd.hpp"
#include "walk.hpp"

namespace spikeslab {
namespace SPIKESLAB_ISA {
namespace {

constexpr double kLog2Pi = 1.8378770664093454836;
constexpr int kFlush = 8;  // roots are multiplied, and so often their logarithm is taken

constexpr long triangle(long n) { return n * (n + 1) / 2; }

class Lanes {
 public:
  explicit Lanes(const GaussianPoints& points, bool moments) : points_(points), features_(points.features) {
    const long D = features_, vectors = triangle(D) + 2 * D + (moments ? D * D + D : 0);
    const long integers = (kLanes * D * static_cast<long>(sizeof(int)) + 63) / 64 * 8;
    double* memory = workspace(Slot::kGaussians, vectors * kLanes + integers);
    L_ = reinterpret_cast<Vec*>(memory);
    inverse_ = L_ + triangle(D), u_ = inverse_ + D;
    B_ = u_ + D, mean_ = B_ + (moments ? D * D : 0);
    observed_ = reinterpret_cast<int*>(memory + vectors * kLanes);
  }

  // The points from `first`; the last one fills up the lanes.
  void take(long first) {
    const long left = points_.count - first;
    lanes_ = left < kLanes ? static_cast<int>(left) : kLanes;
    size_ = 0;
    for (int l = 0; l < kLanes; l++) {
      point_[l] = first + (l < lanes_ ? l : lanes_ - 1);
      const double* y = points_.y + point_[l] * features_;
      count_[l] = 0;
      for (int d = 0; d < features_; d++)
        if (y[d] == y[d]) observed_[l * features_ + count_[l]++] = d;
      size_ = count_[l] > size_ ? count_[l] : size_;
    }
  }

  // The end of the points from `first` that all have the same entries; at least those of one vector.
  long same_until(long first) const {
    const double* one = points_.y + first * features_;
    long last = first + 1;
    for (; last < points_.count; last++) {
      const double* y = points_.y + last * features_;
      for (int d = 0; d < features_; d++)
        if ((y[d] == y[d]) != (one[d] == one[d])) return end_of(first, last);
    }
    return last;
  }

  // L for a covariance.
  void factor(const double* C) {
    log_root_ = Vec{};
    Vec product = broadcast(1.0);
    for (int i = 0; i < size_; i++) {
      Vec* row = L_ + triangle(i);
      fill(C, i, row);
      Vec rest = row[i];
      for (int j = 0; j < i; j++) {
        const Vec* other = L_ + triangle(j);
        Vec sum = row[j];
        for (int k = 0; k < j; k++) sum -= row[k] * other[k];
        row[j] = sum * inverse_[j];
        rest -= row[j] * row[j];
      }
      inverse_[i] = inverse_root(rest);
      product *= inverse_[i];
      if (i % kFlush == kFlush - 1 || i == size_ - 1) {
        for (int l = 0; l < kLanes; l++) log_root_[l] += log(product[l]);
        product = broadcast(1.0);
      }
    }
  }

  // u, after factor; returns the log densities.
  Vec solve() {
    Vec square{};
    for (int i = 0; i < size_; i++) {
      const Vec* row = L_ + triangle(i);
      Vec u{};
      for (int l = 0; l < kLanes; l++)
        if (i < count_[l]) u[l] = points_.y[point_[l] * features_ + place(l, i)];
      for (int j = 0; j < i; j++) u -= row[j] * u_[j];
      u_[i] = u * inverse_[i];
      square += u_[i] * u_[i];
    }
    Vec log_density = log_root_ - 0.5 * square;
    for (int l = 0; l < kLanes; l++) log_density[l] -= 0.5 * kLog2Pi * count_[l];
    return log_density;
  }

  // B, after factor with the same covariance.
  void regress(const double* C) {
    const int D = features_;
    for (int i = 0; i < size_; i++) {
      Vec* row = B_ + static_cast<long>(i) * D;
      for (int d = 0; d < D; d++) row[d] = Vec{};
      for (int l = 0; l < kLanes; l++) {
        if (i >= count_[l]) continue;
        const double* from = C + static_cast<long>(place(l, i)) * D;
        for (int d = 0; d < D; d++) row[d][l] = from[d];
      }
      for (int k = 0; k < i; k++) {
        const Vec factor = L_[triangle(i) + k];
        const Vec* other = B_ + static_cast<long>(k) * D;
        for (int d = 0; d < D; d++) row[d] -= factor * other[d];
      }
      for (int d = 0; d < D; d++) row[d] *= inverse_[i];
    }
  }

  // Moments of z, after regress and solve.
  void expect(const double* C, const GaussianMoments& out) {
    const int D = features_;
    for (int d = 0; d < D; d++) {
      Vec mean{}, variance = broadcast(C[static_cast<long>(d) * D + d]);
      for (int i = 0; i < size_; i++) {
        const Vec b = B_[static_cast<long>(i) * D + d];
        mean += b * u_[i];
        variance -= b * b;
      }
      mean_[d] = mean;
      variance = maximum(variance, Vec{});
      for (int l = 0; l < lanes_; l++) {
        out.mean[point_[l] * D + d] = mean[l];
        out.variance[point_[l] * D + d] = variance[l];
      }
    }
    if (out.scatter) scatter(C, out);
  }

 private:
  static long end_of(long first, long last) { return last - first < kLanes ? first + kLanes : last - (last - first) % kLanes; }

  int place(int l, int i) const { return observed_[l * features_ + i]; }

  // Row i of Sigma_oo.
  void fill(const double* C, int i, Vec* row) const {
    for (int j = 0; j <= i; j++) row[j] = Vec{};
    row[i] += 1.0;
    for (int l = 0; l < kLanes; l++) {
      if (i >= count_[l]) continue;
      const double* from = C + static_cast<long>(place(l, i)) * features_;
      for (int j = 0; j <= i; j++) row[j][l] = from[place(l, j)];
      row[i][l] += points_.noise;
    }
  }

  void scatter(const double* C, const GaussianMoments& out) const {
    const int D = features_;
    Vec weight{};
    for (int l = 0; l < lanes_; l++) weight[l] = out.weights[point_[l]];
    const double total = sum_lanes(weight);
    const auto columns = [&](auto tile, int d, int e) SPIKESLAB_LAMBDA {
      constexpr int kWide = decltype(tile)::value;
      Vec sum[kWide];
      for (int t = 0; t < kWide; t++) sum[t] = mean_[d] * mean_[e + t];
      for (int i = 0; i < size_; i++) {
        const Vec* row = B_ + static_cast<long>(i) * D;
        for (int t = 0; t < kWide; t++) sum[t] -= row[d] * row[e + t];
      }
      const long at = static_cast<long>(d) * D + e;
      for (int t = 0; t < kWide; t++) out.scatter[at + t] += total * C[at + t] + sum_lanes(weight * sum[t]);
    };
    for (int d = 0; d < D; d++) {
      int e = 0;
      for (; e + 4 <= d + 1; e += 4) columns(Size<4>{}, d, e);
      for (; e <= d; e++) columns(Size<1>{}, d, e);
    }
  }

  const GaussianPoints& points_;
  const int features_;
  Vec *L_, *inverse_, *u_, *B_, *mean_;  // inverse_: 1 / the diagonal of L
  Vec log_root_;                         // of the density: -log|L|
  int* observed_;                        // lanes x features: places of the observed entries
  long point_[kLanes];
  int count_[kLanes], lanes_ = 0, size_ = 0;
};

}  // namespace

void gaussian_densities(const GaussianPoints& points, int classes, const double* covariances, double* log_density) {
  Lanes lanes(points, false);
  const long square = static_cast<long>(points.features) * points.features;
  for (long first = 0, last; first < points.count; first = last) {
    last = lanes.same_until(first);
    lanes.take(first);
    for (int r = 0; r < classes; r++) {
      lanes.factor(covariances + r * square);
      for (long at = first; at < last; at += kLanes) {
        if (last - first > kLanes) lanes.take(at);
        const Vec found = lanes.solve();
        for (int l = 0; l < kLanes && at + l < points.count; l++) log_density[(at + l) * classes + r] = found[l];
      }
    }
  }
}

void gaussian_expectations(const GaussianPoints& points, const double* covariance, const GaussianMoments& out) {
  Lanes lanes(points, true);
  for (long first = 0, last; first < points.count; first = last) {
    last = lanes.same_until(first);
    for (long at = first; at < last; at += kLanes) {
      lanes.take(at);
      if (at == first) {
        lanes.factor(covariance);
        lanes.regress(covariance);
      }
      lanes.solve();
      lanes.expect(covariance, out);
    }
  }
}

}  // namespace SPIKESLAB_ISA
}  // namespace spikeslab
