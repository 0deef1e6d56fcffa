// Two passes over the elimination tree (see plan.hpp) for blocks of points, laid out [latent][point].
//
// Compiled once per instruction set, SPIKESLAB_ISA naming the namespace. Everything but the entry point has internal
// linkage and nothing of the C++ library is used: the linker must not merge this code with that for another CPU.
#include "walk.hpp"

#include <math.h>
#include <string.h>

#include "simd.hpp"

namespace spikeslab {
namespace SPIKESLAB_ISA {
namespace {

constexpr int kBlock = 128;   // points that walk through a table together
constexpr int kBatch = 1024;  // points that share the tables of a tree cut into subtrees

enum class Pass { kStore, kSum, kMaximum };  // what the forward pass does with the leaf weights

struct Rows {  // value j of point i is at[j * stride + i]
  double* at;
  int stride;
  SPIKESLAB_MEMBER double* operator[](int j) const { return at + static_cast<long>(j) * stride; }
  SPIKESLAB_MEMBER Rows from(int point) const { return {at + point, stride}; }
};

// ---- one node, whatever its size: the three steps of a walk, on `vectors` vectors of points ----

// Forward step of pivot m - 1 to a component with coefficients c.
template <bool kMeans>
void move_forward(int m, const double* row, const double* c, Rows x, const double* w, Rows x1, double* w1, int vectors) {
  const auto step = [&](auto group, int point) SPIKESLAB_LAMBDA {
    constexpr int G = decltype(group)::value;
    Vec t[G];
    for (int g = 0; g < G; g++) {
      const int i = point + g * kLanes;
      const Vec h = load(x[m - 1] + i);
      if constexpr (kMeans) {
        const Vec delta = h - c[2];
        t[g] = c[1] * delta - c[3];
        store(w1 + i, (load(w + i) + c[0]) - delta * (t[g] - c[3]));
      } else {
        t[g] = c[1] * h;
        store(w1 + i, (load(w + i) + c[0]) - h * t[g]);
      }
    }
    for (int j = 0; j < m - 1; j++)
      for (int g = 0; g < G; g++) store(x1[j] + point + g * kLanes, load(x[j] + point + g * kLanes) - row[j] * t[g]);
  };
  for_groups(vectors, step);
}

// Backward step downwards: integrate the pivot out at a component with coefficients c = tau, m / q.
void move_backward(int m, const double* row, const double* c, Rows b, Rows b1, int vectors) {
  const auto step = [&](auto group, int point) SPIKESLAB_LAMBDA {
    constexpr int G = decltype(group)::value;
    Vec t[G];
    for (int g = 0; g < G; g++) t[g] = c[0] * load(b[m - 1] + point + g * kLanes) + c[1];
    for (int j = 0; j < m - 1; j++)
      for (int g = 0; g < G; g++) store(b1[j] + point + g * kLanes, load(b[j] + point + g * kLanes) - row[j] * t[g]);
  };
  for_groups(vectors, step);
}

// How a child's moments get into those of its node. The first child writes its own into the node's rows; where that was a
// skipped spike, the pivot's row is still to be written by the second.
enum class Join { kInPlace, kAfterSpike, kAdd };

// Backward step upwards: the child's moments T and mass P join the node's E and mass, and the sums over the points.
template <bool kFirst, Join kJoin>
void gather(int m, const double* row, const double* c, Rows b, Rows T, const double* P, Rows E, double* mass,
            double* tracked, Vec* sums, int vectors) {
  const auto step = [&](auto group, int point) SPIKESLAB_LAMBDA {
    constexpr int G = decltype(group)::value;
    Vec t[G], u[G];
    for (int g = 0; g < G; g++) {
      t[g] = c[0] * load(b[m - 1] + point + g * kLanes) + c[1];
      u[g] = Vec{};
    }
    for (int j = 0; j < m - 1; j++) {
      Vec total{};
      for (int g = 0; g < G; g++) {
        const int i = point + g * kLanes;
        const Vec moment = load(T[j] + i);
        u[g] += row[j] * moment;
        total += t[g] * moment;
        if constexpr (kJoin != Join::kInPlace) store(E[j] + i, load(E[j] + i) + moment);
      }
      sums[j] += total;
    }
    for (int g = 0; g < G; g++) {
      const int i = point + g * kLanes;
      const Vec p = load(P + i);
      const Vec e = t[g] * p - c[0] * u[g];
      sums[m - 1] += t[g] * e + c[0] * p;
      if constexpr (kFirst) sums[m] += e;
      store(E[m - 1] + i, kJoin == Join::kAdd ? load(E[m - 1] + i) + e : e);
      if constexpr (kJoin != Join::kInPlace) store(mass + i, load(mass + i) + p);
      if (tracked) store(tracked + i, load(tracked + i) + p);
    }
  };
  for_groups(vectors, step);
}

// Second moments from the sums: those of the child, S1 (row length m - 1), and of the pivot, join S (row length m).
template <bool kFirst>
SPIKESLAB_INLINE void fold_component(int m, const double* row, double tau, const double* sums, const double* S1, double* S,
                                     double* first, double* second) {
  double* pivot = S + (m - 1) * m;
  double square = sums[m - 1];
  for (int j = 0; j < m - 1; j++) {
    double r = 0;
    for (int i = 0; i < m - 1; i++) r += row[i] * (i < j ? S1[j * (m - 1) + i] : S1[i * (m - 1) + j]);
    r = sums[j] - tau * r;
    pivot[j] += r;
    square -= tau * row[j] * r;
  }
  pivot[m - 1] += square;
  *second += square;
  if constexpr (kFirst) *first += sums[m];
}

SPIKESLAB_INLINE void add_triangle(int m, const double* S1, double* S) {
  for (int i = 0; i < m - 1; i++)
    for (int j = 0; j <= i; j++) S[i * m + j] += S1[i * (m - 1) + j];
}

// ---- the leaf block: the last M latents with K components each, unrolled in registers. Its leaf weights are stored vector by
// vector, so that both passes stream through them ----

template <int K, bool kHard, bool kMeans>
struct Leaf {
  static constexpr bool kFirst = !(K == 2 && kHard);
  static constexpr int kStride = kMeans ? 4 : 2;
  static constexpr int kMoved = K - kHard;
  static constexpr long forward_table(int m) { return m <= 0 ? 0 : m - 1 + (K - 1) * kStride + K * forward_table(m - 1); }
  static constexpr long backward_table(int m) { return m <= 0 ? 0 : m - 1 + 2 * kMoved + K * backward_table(m - 1); }
  static constexpr long sums(int m) { return m <= 0 ? 0 : kMoved * (m + kFirst) + K * sums(m - 1); }
  static constexpr long leaves(int m) { return m <= 0 ? 1 : K * leaves(m - 1); }

  template <int M, Pass kPass>
  SPIKESLAB_INLINE void forward(const Vec* x, Vec w, const double* table, double* out, Vec& z) {
    if constexpr (M == 0) {
      if constexpr (kPass == Pass::kMaximum) {
        z = maximum(z, w);
      } else {
        const Vec e = exp2(w);
        if constexpr (kPass == Pass::kStore) store(out, e);
        z += e;
      }
    } else {
      const double* child = table + M - 1 + (K - 1) * kStride;
#pragma GCC unroll 4
      for (int k = 0; k < K - 1; k++) {
        const double* c = table + M - 1 + k * kStride;
        Vec x1[M], w1, t;
        if constexpr (kMeans) {
          const Vec delta = x[M - 1] - c[2];
          t = c[1] * delta - c[3];
          w1 = (w + c[0]) - delta * (t - c[3]);
        } else {
          t = c[1] * x[M - 1];
          w1 = (w + c[0]) - x[M - 1] * t;
        }
#pragma GCC unroll 4
        for (int j = 0; j < M - 1; j++) x1[j] = x[j] - table[j] * t;
        forward<M - 1, kPass>(x1, w1, child + k * forward_table(M - 1), out + k * leaves(M - 1) * kLanes, z);
      }
      forward<M - 1, kPass>(x, w, child + (K - 1) * forward_table(M - 1), out + (K - 1) * leaves(M - 1) * kLanes, z);
    }
  }

  // tracked[j * (K - 1) + k - 1]: probability of component k > 0 of latent j.
  template <int M>
  SPIKESLAB_INLINE void backward(const Vec* b, const double* table, const double* leaf, Vec inverse, Vec* E, Vec& mass,
                                 Vec* totals, Vec* tracked) {
    if constexpr (M == 0) {
      mass = load(leaf) * inverse;
    } else {
      const double* child = table + M - 1 + 2 * kMoved;
      Vec* child_totals = totals + kMoved * (M + kFirst);
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) {
        const double* table1 = child + k * backward_table(M - 1);
        const double* leaf1 = leaf + k * leaves(M - 1) * kLanes;
        Vec* totals1 = child_totals + k * sums(M - 1);
        if (kHard && k == 0) {
          backward<M - 1>(b, table1, leaf1, inverse, E, mass, totals1, tracked);
          continue;
        }
        const double* c = table + M - 1 + 2 * (k - kHard);
        Vec* total = totals + (k - kHard) * (M + kFirst);
        const Vec t = c[0] * b[M - 1] + c[1];
        Vec b1[M], T[M], p;
#pragma GCC unroll 4
        for (int j = 0; j < M - 1; j++) b1[j] = b[j] - table[j] * t;
        backward<M - 1>(b1, table1, leaf1, inverse, T, p, totals1, tracked);
        Vec e = t * p, u{};
#pragma GCC unroll 4
        for (int j = 0; j < M - 1; j++) {
          u += table[j] * T[j];
          total[j] += t * T[j];
          E[j] = k == 0 ? T[j] : E[j] + T[j];
        }
        if constexpr (M > 1) e -= c[0] * u;
        total[M - 1] += t * e + c[0] * p;
        if constexpr (kFirst) total[M] += e;
        E[M - 1] = k == kHard ? e : E[M - 1] + e;
        mass = k == 0 ? p : mass + p;
        if (k > 0) tracked[(M - 1) * (K - 1) + k - 1] += p;
      }
    }
  }

  template <int M>
  static void fold(const double* table, const double* sums_at, double* S, const Level* levels, int components,
                   const Sums& out) {
    if constexpr (M > 0) {
      const double* child = table + M - 1 + 2 * kMoved;
      const double* child_sums = sums_at + kMoved * (M + kFirst);
      const Level& level = levels[M - 1];
      for (int k = 0; k < K; k++) {
        double S1[(M - 1) * (M - 1) + 1] = {};
        fold<M - 1>(child + k * backward_table(M - 1), child_sums + k * sums(M - 1), S1, levels, components, out);
        add_triangle(M, S1, S);
        if (kHard && k == 0) continue;
        const long at = level.latent * components + level.components[k].index;
        fold_component<kFirst>(M, table, table[M - 1 + 2 * (k - kHard)], sums_at + (k - kHard) * (M + kFirst), S1, S,
                               out.first + at, out.second + at);
      }
    }
  }
};

// ---- observations ----

// b and xhat of a batch of observations `y`, and minus half the squares that make the log density of the reference state: a sum
// of squares, where |y|^2 / sigma^2 - b'xhat would cancel.
void project(const Plan& plan, const Observation& o, Rows y, Rows b, Rows x, double* log_reference, int vectors) {
  constexpr int kTogether = 4;
  const int n = plan.latents;
  for (int point = 0; point < vectors * kLanes; point += kLanes) {
    for (int first = 0; first < n; first += kTogether) {
      int latent[kTogether];
      Vec pull[kTogether], mean[kTogether];
      for (int q = 0; q < kTogether; q++) {
        latent[q] = plan.levels[first + q < n ? first + q : n - 1].latent;
        pull[q] = broadcast(o.b0[latent[q]]);
        mean[q] = broadcast(o.xhat0[latent[q]]);
      }
      for (long d = 0; d < o.features; d++) {
        const Vec value = load(y[d] + point);
        for (int q = 0; q < kTogether; q++) {
          pull[q] += o.precise[d * n + latent[q]] * value;
          mean[q] += o.gain[d * n + latent[q]] * value;
        }
      }
      for (int q = 0; q < kTogether && first + q < n; q++) {
        store(b[first + q] + point, pull[q]);
        store(x[first + q] + point, mean[q]);
      }
    }
    Vec squares{};
    for (long d = 0; d < o.features; d++) {
      Vec residual = load(y[d] + point) - o.offset[d];
      for (int j = 0; j < n; j++) residual -= o.mixing[d * n + plan.levels[j].latent] * load(x[j] + point);
      squares += o.precision[d] * residual * residual;
    }
    for (int j = 0; j < n; j++) {
      const int latent = plan.levels[j].latent;
      const Vec mean = load(x[j] + point), deviation = mean - o.reference_mean[latent];
      squares += o.reference_precision[latent] * deviation * deviation;
      store(x[j] + point, kUnit * mean);
    }
    store(log_reference + point, -0.5 * squares);
  }
}

// cross += sum y <x>'
void multiply(const Plan& plan, long features, Rows y, Rows E, int vectors, double* cross) {
  const int n = plan.latents;
  for (long d = 0; d < features; d++)
    for (int j = 0; j < n; j++) {
      Vec sum{};
      for (int i = 0; i < vectors * kLanes; i += kLanes) sum += load(y[d] + i) * load(E[j] + i);
      cross[d * n + plan.levels[j].latent] += sum_lanes(sum);
    }
}

// ---- the walk ----

template <int K, bool kHard, bool kMeans, int M>
class Walker {
  using Block = Leaf<K, kHard, kMeans>;
  static constexpr bool kFirst = Block::kFirst;
  static constexpr int kStride = Block::kStride;

  const Plan& plan_;
  const Sums* out_;
  const int n_;
  double *leaf_weights_, *tables_;
  Vec* sums_;  // one lane per lane of points; `lane_sums` adds the lanes up

 public:
  Walker(const Plan& plan, const Sums* out) : plan_(plan), out_(out), n_(plan.latents) {
    leaf_weights_ = workspace(Slot::kLeaves, leaves(plan_, plan_.tabulated) * kBlock);
    sums_ = reinterpret_cast<Vec*>(workspace(Slot::kSums, sums_size(plan_, plan_.tabulated) * kLanes));
    tables_ = whole() ? nullptr
                      : workspace(Slot::kTables, forward_size(plan_, plan_.tabulated) +
                                                     backward_size(plan_, plan_.tabulated));
  }

  void run(const Points& points) {
    const bool moments = out_ != nullptr;
    const Observation* observation = points.observation;
    const int batch = whole() ? kBlock : kBatch;
    const long rows = static_cast<long>(n_) * batch;
    double* memory = workspace(Slot::kRows, (3 + plan_.components) * rows + 5 * batch);
    const Rows x{memory, batch}, b{memory + rows, batch}, E{memory + 2 * rows, batch}, s{memory + 3 * rows, batch};
    double* w = memory + (3 + plan_.components) * rows;
    double *z = w + batch, *inverse = z + batch, *mass = inverse + batch, *log_reference = mass + batch;
    const Rows y{observation ? workspace(Slot::kData, observation->features * batch) : nullptr, batch};
    const long matrix = static_cast<long>(n_) * n_;
    long level_size = n_ * (n_ + 2L) * kLanes, matrices = scratch_size(plan_, n_);
    for (int m = 1; m <= n_; m++) {  // what one level of the recursions below takes
      const long count = plan_.levels[m - 1].count;
      level_size += 3L * m * batch;
      matrices += (2 * count + 1) * (m - 1) * (m - 1) + 3 * m + count * (kStride + 2);
    }
    double* levels = workspace(Slot::kLevels, level_size);
    double* S = workspace(Slot::kMatrices, matrix + matrices);
    double* scratch = S + matrix;
    memset(S, 0, sizeof(double) * matrix);
    memset(sums_, 0, sizeof(Vec) * sums_size(plan_, plan_.tabulated));

    for (long start = 0; start < points.count; start += batch) {
      const int count = static_cast<int>(points.count - start < batch ? points.count - start : batch);
      const int vectors = (count + kLanes - 1) / kLanes, padded = vectors * kLanes;
      if (observation) {
        const long features = observation->features;
        for (long d = 0; d < features; d++) read(points.y + start * features + d, features, count, padded, 1.0, y[d]);
        project(plan_, *observation, y, b, x, log_reference, vectors);
      } else {
        memset(log_reference, 0, sizeof(double) * padded);
        for (int j = 0; j < n_; j++) {
          const long first = start * n_ + plan_.levels[j].latent;
          read(points.xhat + first, n_, count, padded, kUnit, x[j]);
          if (moments) read(points.b + first, n_, count, padded, 1.0, b[j]);
        }
      }
      const double first_weight = isinf(plan_.start) ? 0 : plan_.start;
      for (int i = 0; i < padded; i++) w[i] = first_weight;
      if (isinf(plan_.start)) {
        walk_forward<Pass::kMaximum>(x, w, z, vectors, levels, scratch);
        for (int i = 0; i < padded; i++) w[i] = -z[i];
      }
      if (whole() && moments)
        walk_forward<Pass::kStore>(x, w, z, vectors, levels, scratch);
      else
        walk_forward<Pass::kSum>(x, w, z, vectors, levels, scratch);
      for (int i = 0; i < count; i++) points.log_ratio[start + i] = log_reference[i] + kLog2 * (log2(z[i]) - w[i]);
      if (!moments) continue;
      memset(E.at, 0, sizeof(double) * rows);  // nobody writes the row of a latent that is always exactly zero
      for (int i = 0; i < padded; i++) inverse[i] = i < count ? 1 / z[i] : 0;  // a padded point weighs nothing
      memset(s.at, 0, sizeof(double) * plan_.components * rows);
      if (whole())
        backward(n_, b, plan_.backward, leaf_weights_, inverse, E, mass, sums_, s, vectors, levels);
      else
        cut_backward(n_, plan_.Lam, n_, plan_.A, n_, x, w, b, inverse, E, mass, s, vectors, S, levels, scratch);
      write(points, start, count, E, s, mass);
      if (observation) multiply(plan_, observation->features, y, E, vectors, out_->cross);
    }
    if (!moments) return;
    if (whole()) fold(n_, plan_.backward, lane_sums(sums_, sums_size(plan_, n_)), S, scratch);
    for (int i = 0; i < n_; i++)
      for (int j = 0; j <= i; j++) {
        const long a = plan_.levels[i].latent, c = plan_.levels[j].latent;
        out_->outer[a * n_ + c] += S[i * n_ + j];
        if (i != j) out_->outer[c * n_ + a] += S[i * n_ + j];
      }
  }

 private:
  // Row of the j-th probability that the leaf block tracks: those of the components but the first.
  int tracked_row(int j) const { return j / (K > 1 ? K - 1 : 1) * plan_.components + j % (K > 1 ? K - 1 : 1) + 1; }

  bool whole() const { return plan_.tabulated == n_; }

  // A column of the caller's, of points one `stride` apart, into a row of the walk's.
  static void read(const double* from, long stride, int count, int padded, double scale, double* row) {
    for (int i = 0; i < count; i++) row[i] = scale * from[i * stride];
    for (int i = count; i < padded; i++) row[i] = 0;
  }

  // Moments and component probabilities of a batch. `mass` is 1 for a point, 0 for padding; the first component of a latent has
  // what the others leave.
  void write(const Points& points, long start, int count, Rows E, Rows s, double* mass) const {
    const int components = plan_.components;
    for (int j = 0; j < n_; j++) {
      const Level& level = plan_.levels[j];
      if (points.mean) {
        double* mean = points.mean + start * n_ + level.latent;
        for (int i = 0; i < count; i++) mean[static_cast<long>(i) * n_] = E[j][i];
      }
      if (!kFirst) out_->first[level.latent * components + level.components[level.count - 1].index] += total(E[j], count);
      double* rest = s[j * components];
      for (int i = 0; i < count; i += kLanes) {
        Vec left = load(mass + i);
        for (int k = 1; k < level.count; k++) left -= load(s[j * components + k] + i);
        store(rest + i, maximum(left, Vec{}));
      }
      for (int k = 0; k < level.count; k++) {
        const double* row = s[j * components + k];
        out_->counts[level.latent * components + level.components[k].index] += total(row, count);
        if (!points.probabilities) continue;
        double* p = points.probabilities + (start * n_ + level.latent) * components + level.components[k].index;
        for (int i = 0; i < count; i++) p[static_cast<long>(i) * n_ * components] = row[i];
      }
    }
  }

  static double total(const double* row, int count) {
    Vec sum{};
    for (int i = 0; i < count; i += kLanes) sum += load(row + i);
    return sum_lanes(sum);
  }

  template <Pass kPass>
  void walk_forward(Rows x, const double* w, double* z, int vectors, double* levels, double* scratch) {
    for (int i = 0; i < vectors * kLanes; i++) z[i] = kPass == Pass::kMaximum ? -HUGE_VAL : 0;
    if (whole())
      forward<kPass>(n_, x, w, plan_.forward, leaf_weights_, z, vectors, levels);
    else
      cut_forward<kPass>(n_, plan_.Lam, n_, x, w, z, vectors, levels, scratch);
  }

  // Within a table.
  template <Pass kPass>
  void forward(int m, Rows x, const double* w, const double* table, double* out, double* z, int vectors, double* ws) const {
    if (m == M) {
      for (int v = 0; v < vectors; v++) {
        const int i = v * kLanes;
        Vec r[M + 1], total = load(z + i);
        for (int j = 0; j < M; j++) r[j] = load(x[j] + i);
        Block::template forward<M, kPass>(r, load(w + i), table, out + i * Block::leaves(M), total);
        store(z + i, total);
      }
      return;
    }
    const int last = plan_.levels[m - 1].count - 1;
    const double* c = table + m - 1;
    const double* child = c + last * kStride;
    const Rows x1{ws, kBlock};
    double* w1 = x1[m - 1];
    for (int k = 0; k < last; k++) {
      move_forward<kMeans>(m, table, c + k * kStride, x, w, x1, w1, vectors);
      forward<kPass>(m - 1, x1, w1, child, out, z, vectors, x1[m]);
      child += forward_size(plan_, m - 1);
      out += leaves(plan_, m - 1) * kBlock;
    }
    forward<kPass>(m - 1, x, w, child, out, z, vectors, ws);
  }

  void backward(int m, Rows b, const double* table, const double* leaf, const double* inverse, Rows E, double* mass,
                Vec* sums, Rows s, int vectors, double* ws) const {
    if (m == M) {
      constexpr int kSums = Block::sums(M), kTracked = M * (K - 1) + 1;
      Vec totals[kSums + 1];
      for (int j = 0; j < kSums; j++) totals[j] = sums[j];
      for (int v = 0; v < vectors; v++) {
        const int i = v * kLanes;
        Vec r[M + 1], moments[M + 1], probabilities[kTracked], total;
        for (int j = 0; j < M; j++) r[j] = load(b[j] + i);
        for (int j = 0; j < M * (K - 1); j++) probabilities[j] = load(s[tracked_row(j)] + i);
        Block::template backward<M>(r, table, leaf + i * Block::leaves(M), load(inverse + i), moments, total, totals, probabilities);
        for (int j = 0; j < M; j++) store(E[j] + i, moments[j]);
        for (int j = 0; j < M * (K - 1); j++) store(s[tracked_row(j)] + i, probabilities[j]);
        store(mass + i, total);
      }
      for (int j = 0; j < kSums; j++) sums[j] = totals[j];
      return;
    }
    const Level& level = plan_.levels[m - 1];
    const int skips = skipped(plan_, m);
    const double* child = table + m - 1 + 2 * (level.count - skips);
    Vec* child_sums = sums + (level.count - skips) * (m + kFirst);
    const Rows b1{ws, kBlock}, T{b1[m - 1], kBlock};
    double* P = T[m - 1];
    double* deeper = T[m];
    for (int k = 0; k < level.count; k++) {
      if (k < skips) {
        backward(m - 1, b, child, leaf, inverse, E, mass, child_sums, s, vectors, deeper);
      } else {
        const double* c = table + m - 1 + 2 * (k - skips);
        const Rows T1 = k == 0 ? E : T;
        double* P1 = k == 0 ? mass : P;
        move_backward(m, table, c, b, b1, vectors);
        backward(m - 1, b1, child, leaf, inverse, T1, P1, child_sums, s, vectors, deeper);
        join(m, k, table, c, b, T1, P1, E, mass, s, sums + (k - skips) * (m + kFirst), vectors);
      }
      child += backward_size(plan_, m - 1);
      child_sums += sums_size(plan_, m - 1);
      leaf += leaves(plan_, m - 1) * kBlock;
    }
  }

  void join(int m, int k, const double* row, const double* c, Rows b, Rows T, const double* P, Rows E, double* mass, Rows s,
            Vec* sums, int vectors) const {
    if (k == 0) return gather<kFirst, Join::kInPlace>(m, row, c, b, T, P, E, mass, nullptr, sums, vectors);
    double* tracked = s[(m - 1) * plan_.components + k];
    if (k == skipped(plan_, m)) return gather<kFirst, Join::kAfterSpike>(m, row, c, b, T, P, E, mass, tracked, sums, vectors);
    gather<kFirst, Join::kAdd>(m, row, c, b, T, P, E, mass, tracked, sums, vectors);
  }

  // In place: the numbers take less room than the vectors they come from.
  static const double* lane_sums(Vec* sums, long count) {
    double* totals = reinterpret_cast<double*>(sums);
    for (long i = 0; i < count; i++) totals[i] = sum_lanes(sums[i]);
    return totals;
  }

  // Adds to S (m x m, lower triangle).
  void fold(int m, const double* table, const double* sums, double* S, double* scratch) const {
    if (m == M) return Block::template fold<M>(table, sums, S, plan_.levels, plan_.components, *out_);
    const Level& level = plan_.levels[m - 1];
    const int skips = skipped(plan_, m);
    const double* child = table + m - 1 + 2 * (level.count - skips);
    const double* child_sums = sums + (level.count - skips) * (m + kFirst);
    const long block = static_cast<long>(m - 1) * (m - 1);
    for (int k = 0; k < level.count; k++) {
      double* S1 = scratch;
      memset(S1, 0, sizeof(double) * block);
      fold(m - 1, child, child_sums, S1, scratch + block);
      const double* c = table + m - 1 + 2 * (k - skips);
      fold_pivot(m, k, table, c, sums + (k - skips) * (m + kFirst), S1, S);
      child += backward_size(plan_, m - 1);
      child_sums += sums_size(plan_, m - 1);
    }
  }

  void fold_pivot(int m, int k, const double* row, const double* c, const double* sums, const double* S1, double* S) const {
    const Level& level = plan_.levels[m - 1];
    add_triangle(m, S1, S);
    if (k < skipped(plan_, m)) return;
    const long at = level.latent * plan_.components + level.components[k].index;
    fold_component<kFirst>(m, row, c[0], sums, S1, S, out_->first + at, out_->second + at);
  }

  // Above the tables of a tree that is too large for one: the same steps on a whole batch of points, each node's
  // coefficients made on the way.
  template <Pass kPass>
  void cut_forward(int m, const double* Lam, int stride, Rows x, const double* w, double* z, int vectors, double* ws,
                   double* scratch) {
    if (m == plan_.tabulated) {
      build_forward(plan_, m, Lam, stride, tables_, scratch);
      for (int v = 0; v < vectors; v += kBlock / kLanes) {
        const int point = v * kLanes;
        forward<kPass>(m, x.from(point), w + point, tables_, leaf_weights_, z + point, block_vectors(vectors - v), ws);
      }
      return;
    }
    const int last = plan_.levels[m - 1].count - 1;
    const long block = static_cast<long>(m - 1) * (m - 1);
    double* node = scratch;
    double* matrices = node + m - 1 + last * kStride;
    double* deeper = matrices + last * block;
    forward_node(plan_, m, Lam, stride, node, matrices);
    const Rows x1{ws, kBatch};
    for (int k = 0; k < last; k++) {
      move_forward<kMeans>(m, node, node + m - 1 + k * kStride, x, w, x1, x1[m - 1], vectors);
      cut_forward<kPass>(m - 1, matrices + k * block, m - 1, x1, x1[m - 1], z, vectors, x1[m], deeper);
    }
    cut_forward<kPass>(m - 1, Lam, stride, x, w, z, vectors, ws, deeper);
  }

  void cut_backward(int m, const double* Lam, int Lam_stride, const double* A, int A_stride, Rows x, const double* w, Rows b, const double* inverse,
                    Rows E, double* mass, Rows s, int vectors, double* S, double* ws, double* scratch) {
    if (m == plan_.tabulated) {
      double* backward_table = tables_ + forward_size(plan_, m);
      build_forward(plan_, m, Lam, Lam_stride, tables_, scratch);
      build_backward(plan_, m, A, A_stride, backward_table, scratch);
      memset(sums_, 0, sizeof(Vec) * sums_size(plan_, m));
      for (int v = 0; v < vectors; v += kBlock / kLanes) {
        const int point = v * kLanes, some = block_vectors(vectors - v);
        alignas(Vec) double unused[kBlock] = {};
        forward<Pass::kStore>(m, x.from(point), w + point, tables_, leaf_weights_, unused, some, ws);
        backward(m, b.from(point), backward_table, leaf_weights_, inverse + point, E.from(point), mass + point, sums_,
                 s.from(point), some, ws);
      }
      fold(m, backward_table, lane_sums(sums_, sums_size(plan_, m)), S, scratch);
      return;
    }
    const Level& level = plan_.levels[m - 1];
    const int count = level.count, last = count - 1, skips = skipped(plan_, m);
    const long block = static_cast<long>(m - 1) * (m - 1);
    double* forward_at = scratch;
    double* backward_at = forward_at + m - 1 + last * kStride;
    double* Lams = backward_at + m - 1 + 2 * count;
    double* As = Lams + count * block;
    double* S1 = As + count * block;
    double* deeper = S1 + block;
    forward_node(plan_, m, Lam, Lam_stride, forward_at, Lams);
    backward_node(plan_, m, A, A_stride, backward_at, As);
    const Rows x1{ws, kBatch}, b1{x1[m], kBatch}, T{b1[m - 1], kBatch};
    double *w1 = x1[m - 1], *P = T[m - 1], *ws1 = T[m] + (m + 1) * kLanes;
    Vec* sums = reinterpret_cast<Vec*>(T[m]);
    for (int k = 0; k < count; k++) {
      const bool moves_forward = k < last, moves_backward = k >= skips;
      const Rows E1 = k == 0 ? E : T;
      double* P1 = k == 0 ? mass : P;
      const double* c = backward_at + m - 1 + 2 * (k - skips);
      if (moves_forward) move_forward<kMeans>(m, forward_at, forward_at + m - 1 + k * kStride, x, w, x1, w1, vectors);
      if (moves_backward) move_backward(m, backward_at, c, b, b1, vectors);
      memset(S1, 0, sizeof(double) * block);
      cut_backward(m - 1, moves_forward ? Lams + k * block : Lam, moves_forward ? m - 1 : Lam_stride,
                   moves_backward ? As + (k - skips) * block : A, moves_backward ? m - 1 : A_stride, moves_forward ? x1 : x,
                   moves_forward ? w1 : w, moves_backward ? b1 : b, inverse, E1, P1, s, vectors, S1,
                   ws1, deeper);
      memset(sums, 0, sizeof(Vec) * (m + 1));
      if (moves_backward) join(m, k, backward_at, c, b, E1, P1, E, mass, s, sums, vectors);
      fold_pivot(m, k, backward_at, c, lane_sums(sums, m + 1), S1, S);
    }
  }

  static int block_vectors(int vectors) { return vectors < kBlock / kLanes ? vectors : kBlock / kLanes; }
};

template <int K, bool kHard, bool kMeans, int kMost>
void walk_leaf(const Plan& plan, const Points& points, const Sums* out) {
  if constexpr (kMost > 0)
    if (plan.layout.leaf_latents < kMost) return walk_leaf<K, kHard, kMeans, kMost - 1>(plan, points, out);
  Walker<K, kHard, kMeans, kMost>(plan, out).run(points);
}

}  // namespace

void walk(const Plan& plan, const Points& points, const Sums* out) {
  const Layout& layout = plan.layout;
  switch (layout.components) {
    case 2:
      if (!layout.hard) return walk_leaf<2, false, true, 4>(plan, points, out);
      if (layout.means) return walk_leaf<2, true, true, 4>(plan, points, out);
      return walk_leaf<2, true, false, 4>(plan, points, out);
    case 3:
      if (!layout.hard) return walk_leaf<3, false, true, 2>(plan, points, out);
      return walk_leaf<3, true, true, 2>(plan, points, out);
    case 4:
      return walk_leaf<4, false, true, 1>(plan, points, out);
    default:
      return walk_leaf<1, false, true, 0>(plan, points, out);
  }
}

}  // namespace SPIKESLAB_ISA
}  // namespace spikeslab
