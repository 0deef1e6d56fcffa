// Compiled once per instruction set, like walk.cpp and under the same rules.
//
// Symmetric matrices are packed lower triangles: the matrix of a child is the beginning of its node's, and so are its moments.
#include "incomplete.hpp"

#include <math.h>
#include <string.h>

#include "simd.hpp"

namespace spikeslab {
namespace SPIKESLAB_ISA {
namespace {

constexpr double kLogTwoPi = 1.8378770664093453;
constexpr int kUnrolled = 4;  // latents at the bottom of the tree whose loops have a fixed length
constexpr int kRuntime = -1;
constexpr double kDepth = 400;
constexpr double kNothing = 1e-210;  // a mass of less than 2^-kDepth by far, whose moments would be slow subnormal numbers

enum class Pass { kMaximum, kMass, kMoments };

constexpr int triangle(int n) { return n * (n + 1) / 2; }

SPIKESLAB_INLINE Vec square_root(Vec x) {
  Vec root;
  for (int i = 0; i < kLanes; i++) root[i] = __builtin_sqrt(x[i]);
  return root;
}

SPIKESLAB_INLINE Vec where(Bits condition, Vec x) { return (Vec)((Bits)x & condition); }

struct Totals {  // of one component, one number a point: its mass, x and x^2 where it is on
  Vec mass, first, second;
};

template <Pass kPass>
class Elimination {
  static constexpr bool kMoments = kPass == Pass::kMoments;

  const Plan& plan_;
  Totals* totals_;  // level x component

 public:
  Elimination(const Plan& plan, Totals* totals) : plan_(plan), totals_(totals) {}

  // What a node and its descendants take of `memory`.
  static long size(int m) { return m ? 3L * triangle(m - 1) + 3 * (m - 1) + size(m - 1) : 0; }

  // The node with m latents left. `x` and `Lam` are the forward recursion's, with log2 weight w + log2(scale); `b` and `A` the
  // backward one's. Returns the mass, or the largest w; E and S become the moments below the node, not normalised.
  template <int kMost>
  Vec visit(int m, const Vec* Lam, const Vec* x, Vec w, Vec scale, const Vec* A, const Vec* b, Vec* E, Vec* S, Vec* memory) const {
    if constexpr (kMost > 0)
      if (m != kMost) return visit<kMost - 1>(m, Lam, x, w, scale, A, b, E, S, memory);
    return node<kMost>(m, Lam, x, w, scale, A, b, E, S, memory);
  }

  Vec walk(const Vec* Lam, const Vec* x, Vec w, const Vec* A, const Vec* b, Vec* E, Vec* S, Vec* memory) const {
    const Vec one = broadcast(1.0);
    const int n = plan_.latents;
    if (n > kUnrolled) return node<kRuntime>(n, Lam, x, w, one, A, b, E, S, memory);
    return visit<kUnrolled>(n, Lam, x, w, one, A, b, E, S, memory);
  }

 private:
  template <int kM>
  Vec child(int m, const Vec* Lam, const Vec* x, Vec w, Vec scale, const Vec* A, const Vec* b, Vec* E, Vec* S, Vec* memory) const {
    if constexpr (kM == kRuntime) {
      if (m > kUnrolled) return node<kRuntime>(m, Lam, x, w, scale, A, b, E, S, memory);
      return node<kUnrolled>(m, Lam, x, w, scale, A, b, E, S, memory);
    } else {
      return node<kM>(m, Lam, x, w, scale, A, b, E, S, memory);
    }
  }

  template <int kM>
  Vec node(int runtime, const Vec* Lam, const Vec* x, Vec w, Vec scale, const Vec* A, const Vec* b, Vec* E, Vec* S,
           Vec* memory) const {
    if constexpr (kM == 0) {
      if constexpr (kPass == Pass::kMaximum) return w;
      const Vec mass = exp2(w) * scale;
      return where(mass > kNothing, mass);
    } else {
      constexpr int kChild = kM == kRuntime ? kRuntime : kM - 1;
      const int h = (kM == kRuntime ? runtime : kM) - 1, size = triangle(h);
      const Level& level = plan_.levels[h];
      const Component& reference = level.components[level.count - 1];
      const Vec *Lam_row = Lam + size, *A_row = A + size;
      Vec *Lam1 = memory, *A1 = Lam1 + size, *S1 = A1 + size, *x1 = S1 + size, *b1 = x1 + h, *E1 = b1 + h, *deeper = E1 + h;
      const Vec L = maximum(Lam_row[h], broadcast(level.least_variance)), Ahh = maximum(A_row[h], Vec{});
      Vec total = kPass == Pass::kMaximum ? broadcast(-HUGE_VAL) : Vec{};
      if constexpr (kMoments) {
        E[h] = Vec{};
        for (int j = 0; j <= h; j++) S[size + j] = Vec{};
      }
      for (int k = 0; k < level.count; k++) {
        const Component& c = level.components[k];
        const bool moves_forward = k < level.count - 1, moves_backward = !(k == 0 && level.hard);
        Vec w1 = w, scale1 = scale, tau{}, t{};
        if (moves_forward) {
          const double gap = c.mean - reference.mean;
          const Vec over_root = inverse_root(L * (reference.variance - c.variance) + c.variance * reference.variance);
          const Vec over_d = over_root * over_root;
          const Vec kappa = (reference.variance - c.variance) * over_d, alpha = kUnit * c.variance * gap * over_d;
          const Vec delta = x[h] - kUnit * c.mean, step = kappa * delta - alpha;
          w1 += c.log2_odds + gap * gap / (2 * kLog2) * (L + c.variance) * over_d - delta * (step - alpha);
          if constexpr (kPass != Pass::kMaximum) scale1 *= reference.variance * over_root;
          for (int i = 0, at = 0; i < h; i++) {
            const Vec scaled = kappa * Lam_row[i];
            x1[i] = x[i] - Lam_row[i] * step;
            for (int j = 0; j <= i; j++, at++) Lam1[at] = Lam[at] - scaled * Lam_row[j];
          }
        }
        if (kMoments && moves_backward) {
          const Vec over_q = 1.0 / (1.0 + c.variance * Ahh);
          tau = c.variance * over_q;
          t = tau * b[h] + c.mean * over_q;
          for (int i = 0, at = 0; i < h; i++) {
            const Vec scaled = tau * A_row[i];
            b1[i] = b[i] - A_row[i] * t;
            for (int j = 0; j <= i; j++, at++) A1[at] = A[at] - scaled * A_row[j];
          }
        }
        Vec *Ek = k ? E1 : E, *Sk = k ? S1 : S;  // the first child's moments are written into the node's
        const Vec mass = child<kChild>(h, moves_forward ? Lam1 : Lam, moves_forward ? x1 : x, w1, scale1,
                                       moves_backward ? A1 : A, moves_backward ? b1 : b, Ek, Sk, deeper);
        if constexpr (kPass == Pass::kMaximum) {
          total = maximum(total, mass);
          continue;
        }
        total += mass;
        if constexpr (kMoments) {
          Totals& on = totals_[h * plan_.components + k];
          on.mass += mass;
          if (moves_backward) join(h, A_row, tau, t, mass, Ek, Sk, E + h, S + size, on);
          if (k) {
            for (int j = 0; j < h; j++) E[j] += E1[j];
            for (int at = 0; at < size; at++) S[at] += S1[at];
          }
        }
      }
      return total;
    }
  }

  // Moments of the pivot h, given those E1, S1 of the latents below it.
  SPIKESLAB_MEMBER void join(int h, const Vec* A_row, Vec tau, Vec t, Vec mass, const Vec* E1, const Vec* S1, Vec* E, Vec* S,
                             Totals& on) const {
    Vec pull{}, square_pull{};
    for (int j = 0; j < h; j++) pull += A_row[j] * E1[j];
    const Vec first = t * mass - tau * pull;
    for (int j = 0; j < h; j++) {
      Vec row{};
      for (int i = 0; i < h; i++) row += A_row[i] * S1[i < j ? triangle(j) + i : triangle(i) + j];
      const Vec moment = t * E1[j] - tau * row;
      S[j] += moment;
      square_pull += A_row[j] * moment;
    }
    const Vec second = tau * mass + t * first - tau * square_pull;
    *E += first;
    S[h] += second;
    on.first += first;
    on.second += second;
  }
};

// What does not depend on the points, with the latents in the order of the levels.
struct Model {
  int latents;
  long features;
  const Observation& observation;
  double *mixing, *precise, *products, *log_scale;  // D x n, D x n, D x triangle(n): of `precise` and `mixing`; D
  double *root, *mean, *precision;                  // n: of the reference state

  static long size(long features, int n) { return features * (2 * n + triangle(n) + 1) + 3L * n; }

  Model(const Plan& plan, const Observation& o, double* memory) : latents(plan.latents), features(o.features), observation(o) {
    const int n = latents;
    mixing = memory;
    precise = mixing + features * n;
    products = precise + features * n;
    log_scale = products + features * triangle(n);
    root = log_scale + features;
    mean = root + n;
    precision = mean + n;
    for (int i = 0; i < n; i++) {
      const Level& level = plan.levels[i];
      root[i] = sqrt(level.components[level.count - 1].variance);
      mean[i] = o.reference_mean[level.latent];
      precision[i] = o.reference_precision[level.latent];
    }
    for (long d = 0; d < features; d++) {
      log_scale[d] = (log(o.precision[d]) - kLogTwoPi) / 2;
      double* product = products + d * triangle(n);
      for (int i = 0; i < n; i++) {
        mixing[d * n + i] = o.mixing[d * n + plan.levels[i].latent];
        precise[d * n + i] = o.precise[d * n + plan.levels[i].latent];
        for (int j = 0; j <= i; j++) *product++ = precise[d * n + i] * mixing[d * n + j];
      }
    }
  }
};

// A vector of points: what is known of them before the walk.
struct Block {
  Vec *z, *A, *Lam, *b, *x, *factor, *inverse;  // z: y less the offset, 0 where missing
  Bits* observed;
  Vec log_reference;  // log density of the reference state, without its prior weight

  static long size(long features, int n) { return 2 * features + 4L * triangle(n) + 2 * n; }

  Block(long features, int n, Vec* memory) {
    z = memory;
    observed = reinterpret_cast<Bits*>(z + features);
    A = z + 2 * features;
    Lam = A + triangle(n);
    factor = Lam + triangle(n);
    inverse = factor + triangle(n);
    b = inverse + triangle(n);
    x = b + n;
  }

  void read(const Model& model, const double* y, int count) {
    for (long d = 0; d < model.features; d++) {
      Vec value = broadcast(NAN);
      for (int i = 0; i < count; i++) value[i] = y[i * model.features + d];
      observed[d] = value == value;
      z[d] = where(observed[d], value - model.observation.offset[d]);
    }
  }

  void prepare(const Model& model) {
    const int n = model.latents;
    for (int i = 0; i < n; i++) b[i] = Vec{};
    for (int at = 0; at < triangle(n); at++) A[at] = Vec{};
    Vec log_scale{};
    for (long d = 0; d < model.features; d++) {
      const double *precise = model.precise + d * n, *products = model.products + d * triangle(n);
      const Vec seen = where(observed[d], broadcast(1.0));
      for (int i = 0; i < n; i++) b[i] += precise[i] * z[d];
      for (int at = 0; at < triangle(n); at++) A[at] += products[at] * seen;
      log_scale += model.log_scale[d] * seen;
    }
    invert(model);
    // xhat as Newton steps on the log density: the second one mends what rounding did to the first.
    for (int i = 0; i < n; i++) x[i] = broadcast(model.mean[i]);
    for (int step = 0; step < 2; step++) improve(model);
    Vec squares{};
    for (long d = 0; d < model.features; d++) {
      const Vec rest = residual(model, d);
      squares += model.observation.precision[d] * rest * rest;
    }
    for (int i = 0; i < n; i++) squares += model.precision[i] * (x[i] - model.mean[i]) * (x[i] - model.mean[i]);
    log_reference += log_scale - 0.5 * squares;
  }

 private:
  SPIKESLAB_MEMBER Vec residual(const Model& model, long d) const {
    Vec rest = z[d];
    for (int i = 0; i < model.latents; i++) rest -= model.mixing[d * model.latents + i] * x[i];
    return where(observed[d], rest);
  }

  void improve(const Model& model) {
    const int n = model.latents;
    Vec* gradient = factor;  // not needed any more
    for (int i = 0; i < n; i++) gradient[i] = model.precision[i] * (model.mean[i] - x[i]);
    for (long d = 0; d < model.features; d++) {
      const Vec rest = residual(model, d);
      for (int i = 0; i < n; i++) gradient[i] += model.precise[d * n + i] * rest;
    }
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) x[i] += Lam[i < j ? triangle(j) + i : triangle(i) + j] * gradient[j];
  }

  // Lam = V^1/2 (I + V^1/2 A V^1/2)^-1 V^1/2 by Cholesky; V may have zeros.
  void invert(const Model& model) {
    const int n = model.latents;
    const auto at = [](int i, int j) { return triangle(i) + j; };
    log_reference = Vec{};
    Vec determinant = broadcast(1.0);
    for (int i = 0; i < n; i++) {
      for (int j = 0; j <= i; j++) {
        Vec sum = (i == j) + model.root[i] * model.root[j] * A[at(i, j)];
        for (int k = 0; k < j; k++) sum -= factor[at(i, k)] * factor[at(j, k)];
        factor[at(i, j)] = i == j ? square_root(maximum(sum, broadcast(1.0))) : sum * inverse[at(j, j)];
        if (i == j) inverse[at(i, i)] = 1.0 / factor[at(i, i)];
      }
      determinant *= factor[at(i, i)];
      for (int j = 0; j < i; j++) {
        Vec sum{};
        for (int k = j; k < i; k++) sum -= factor[at(i, k)] * inverse[at(k, j)];
        inverse[at(i, j)] = sum * inverse[at(i, i)];
      }
    }
    for (int i = 0; i < n; i++)
      for (int j = 0; j <= i; j++) {
        Vec sum{};
        for (int k = i; k < n; k++) sum += inverse[at(k, i)] * inverse[at(k, j)];
        Lam[at(i, j)] = model.root[i] * model.root[j] * sum;
      }
    for (int l = 0; l < kLanes; l++) log_reference[l] = -log(determinant[l]);
  }
};

// Sums over the points, one number a lane.
struct LaneSums {
  long features;
  int latents, components;
  Vec *outer, *cross, *missing_mean, *missing_second;  // triangle(n), D x n, D x n, D x triangle(n)
  Totals* totals;                                      // n x K

  static long size(long features, int n, int k) { return (features + 1) * triangle(n) + 2 * features * n + 3L * n * k; }

  LaneSums(long features, int n, int k, Vec* memory) : features(features), latents(n), components(k) {
    memset(memory, 0, sizeof(Vec) * size(features, n, k));
    outer = memory;
    cross = outer + triangle(n);
    missing_mean = cross + features * n;
    missing_second = missing_mean + features * n;
    totals = reinterpret_cast<Totals*>(missing_second + features * triangle(n));
  }

  // Of moments that are normalised, and zero for lanes that are no points.
  void add(const Block& block, const double* offset, const Vec* E, const Vec* S, const Totals* on) {
    const int n = latents, size = triangle(n);
    for (int at = 0; at < size; at++) outer[at] += S[at];
    for (int i = 0; i < n * components; i++) {
      totals[i].mass += on[i].mass;
      totals[i].first += on[i].first;
      totals[i].second += on[i].second;
    }
    for (long d = 0; d < features; d++) {
      const Bits observed = block.observed[d], missing = ~observed;
      const Vec y = where(observed, block.z[d] + offset[d]);
      for (int i = 0; i < n; i++) {
        cross[d * n + i] += y * E[i];
        missing_mean[d * n + i] += where(missing, E[i]);
      }
      Vec* second = missing_second + d * size;
      for (int at = 0; at < size; at++) second[at] += where(missing, S[at]);
    }
  }

  void give(const Plan& plan, const IncompleteSums& out) const {
    const int n = latents;
    for (int i = 0; i < n; i++) {
      const Level& level = plan.levels[i];
      for (int k = 0; k < level.count; k++) {
        const Totals& on = totals[i * components + k];
        const long at = static_cast<long>(level.latent) * components + level.components[k].index;
        out.sums.counts[at] += sum_lanes(on.mass);
        out.sums.first[at] += sum_lanes(on.first);
        out.sums.second[at] += sum_lanes(on.second);
      }
      for (long d = 0; d < features; d++) {
        out.sums.cross[d * n + level.latent] += sum_lanes(cross[d * n + i]);
        out.missing_mean[d * n + level.latent] += sum_lanes(missing_mean[d * n + i]);
      }
    }
    spread(plan, outer, out.sums.outer);
    for (long d = 0; d < features; d++) spread(plan, missing_second + d * triangle(n), out.missing_second + d * n * n);
  }

 private:
  static void spread(const Plan& plan, const Vec* packed, double* matrix) {
    const long n = plan.latents;
    for (int i = 0; i < n; i++)
      for (int j = 0; j <= i; j++, packed++) {
        const long a = plan.levels[i].latent, c = plan.levels[j].latent;
        const double sum = sum_lanes(*packed);
        matrix[a * n + c] += sum;
        if (i != j) matrix[c * n + a] += sum;
      }
  }
};

// Moments of `count` points from number `start` on, to where the caller wants them.
void write(const Plan& plan, const IncompletePoints& points, long start, int count, const Vec* E, const Vec* S, const Totals* on) {
  const long n = plan.latents, components = plan.components;
  for (int i = 0; i < n; i++) {
    const Level& level = plan.levels[i];
    for (int l = 0; l < count; l++) {
      const long point = start + l;
      if (points.mean) points.mean[point * n + level.latent] = E[i][l];
      if (points.probabilities)
        for (int k = 0; k < level.count; k++)
          points.probabilities[(point * n + level.latent) * components + level.components[k].index] = on[i * components + k].mass[l];
      if (points.second)
        for (int j = 0; j <= i; j++) {
          const long a = level.latent, c = plan.levels[j].latent;
          double* matrix = points.second + point * n * n;
          matrix[a * n + c] = matrix[c * n + a] = S[triangle(i) + j][l];
        }
    }
  }
}

}  // namespace

void walk_incomplete(const Plan& plan, const IncompletePoints& points, const IncompleteSums* out) {
  const int n = plan.latents, components = plan.components;
  const long features = points.observation->features;
  const Model model(plan, *points.observation, workspace(Slot::kTables, Model::size(features, n)));
  Block block(features, n, reinterpret_cast<Vec*>(workspace(Slot::kData, Block::size(features, n) * kLanes)));
  const long totals_size = 3L * n * components, size = Elimination<Pass::kMoments>::size(n) + n + triangle(n) + totals_size;
  Vec* E = reinterpret_cast<Vec*>(workspace(Slot::kLevels, size * kLanes));
  Vec* S = E + n;
  Totals* totals = reinterpret_cast<Totals*>(S + triangle(n));
  Vec* memory = S + triangle(n) + totals_size;
  const Elimination<Pass::kMaximum> maximum_pass(plan, totals);
  const Elimination<Pass::kMass> mass_pass(plan, totals);
  const Elimination<Pass::kMoments> moments_pass(plan, totals);
  const long sums_size = out ? LaneSums::size(features, n, components) : 0;
  Vec* sums_memory = reinterpret_cast<Vec*>(workspace(Slot::kSums, sums_size * kLanes));
  double log_weight = 0;
  for (int i = 0; i < n; i++) log_weight += log(plan.levels[i].components[plan.levels[i].count - 1].weight);
  // Moments are not normalised before the end, which takes room above the weights: they are at most 1. Unless some state of
  // every point then has at least 2^-kDepth, the largest weight is looked for first (without `scale`, which is at least 1).
  const double first = plan.start - kTop;
  const bool safe = first >= -kDepth && !isinf(first);

  const auto each = [&](LaneSums* sums) {
    for (long start = 0; start < points.count; start += kLanes) {
      const int count = static_cast<int>(points.count - start < kLanes ? points.count - start : kLanes);
      block.read(model, points.y + start * features, count);
      block.prepare(model);
      for (int i = 0; i < n; i++) block.x[i] *= kUnit;
      Vec w = broadcast(safe ? first : 0);
      if (!safe) w = -maximum_pass.walk(block.Lam, block.x, w, block.A, block.b, E, S, memory);
      if (sums) memset(totals, 0, sizeof(Vec) * totals_size);
      const Vec z = sums ? moments_pass.walk(block.Lam, block.x, w, block.A, block.b, E, S, memory)
                         : mass_pass.walk(block.Lam, block.x, w, block.A, block.b, E, S, memory);
      for (int l = 0; l < count; l++)
        points.log_density[start + l] = block.log_reference[l] + log_weight + kLog2 * (log2(z[l]) - w[l]);
      if (!sums) continue;
      Vec inverse = 1.0 / z;
      for (int l = count; l < kLanes; l++) inverse[l] = 0;
      for (int i = 0; i < n; i++) E[i] *= inverse;
      for (int at = 0; at < triangle(n); at++) S[at] *= inverse;
      for (int i = 0; i < n * components; i++) {
        totals[i].mass *= inverse;
        totals[i].first *= inverse;
        totals[i].second *= inverse;
      }
      write(plan, points, start, count, E, S, totals);
      sums->add(block, points.observation->offset, E, S, totals);
    }
  };

  if (!out) return each(nullptr);
  LaneSums sums(features, n, components, sums_memory);
  each(&sums);
  sums.give(plan, *out);
}

}  // namespace SPIKESLAB_ISA
}  // namespace spikeslab
