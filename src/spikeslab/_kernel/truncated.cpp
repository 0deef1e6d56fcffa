// Compiled once per instruction set, like walk.cpp and under the same rules. The maths is in truncated.hpp.
#include "truncated.hpp"

#include <math.h>
#include <string.h>

#include "simd.hpp"
#include "walk.hpp"

namespace spikeslab {
namespace SPIKESLAB_ISA {
namespace {

constexpr int kChunk = 128;  // points that are projected together, and grouped by how many latents they involve
constexpr int kUnrolled = 8;  // latents of a cube whose loops have fixed length
constexpr int kInvolved = kMostFree + kMostActive;
constexpr double kHalfLog2E = 0.72134752044448170368, kLn2 = 0.6931471805599453;
constexpr double kLargestLog2 = 1000.0;   // of a weight; larger ones are cut, and seen by the mass
constexpr double kSafeMass = 0x1p500;     // a mass between this and its inverse is right

constexpr int triangle(int n) { return n * (n + 1) / 2; }

// ---- the search: which states count ----

// log2 of positive normal numbers, to 1.5e-5 absolutely.
SPIKESLAB_INLINE VecF log2_of(VecF x) {
  const BitsF bits = (BitsF)x;
  const VecF exponent = __builtin_convertvector((bits >> 23) - 127, VecF);
  const VecF m = (VecF)((bits & 0x7fffff) | 0x3f800000) - 1.0f;
  VecF p = broadcast_float(0.0463843466f);
  p = p * m - 0.196267483f;
  p = p * m + 0.417594246f;
  p = p * m - 0.709662406f;
  p = p * m + 1.44196558f;
  return exponent + p * m;
}

// The place of the largest of n floats, the first of equals.
SPIKESLAB_INLINE int place_of_largest(const float* x, int n, float* largest) {
  VecF most = load(x);
  for (int i = kFloats; i < n; i += kFloats) most = maximum(most, load(x + i));
  float best = most[0];
  for (int l = 1; l < kFloats; l++) best = most[l] > best ? most[l] : best;
  *largest = best;
  int place = 0;
  while (x[place] != best && place < n - 1) place++;
  return place;
}

struct Choice {
  int clamped;               // latents that stay on
  int latent[kInvolved];     // the free ones, then those
  int slab[kInvolved];       // that they are in, in the best set; -1 for none
  float shift;               // log2 weight of the best set, roughly
};

// The entries that a point has, where some are missing.
struct Observed {
  const int* features;  // null where none is missing
  int count;
};

constexpr int kSpareRows = 4;        // rows of A kept for latents that left the set
constexpr float kLeastGain = 0.01f;  // log2, of a move: less is rounding
constexpr float kHeld = -60.0f;      // a latent whose removal loses more than this is not exchanged

template <bool kPlain>
class Search {
 public:
  static long scratch(const TruncatedModel& model) {
    return (6L + 2 * model.active + kSpareRows) * model.padded_latents / 2 + sizeof(Factor) / sizeof(double);
  }

  Search(const TruncatedModel& model, double* scratch) : model_(model), P_(model.padded_latents) {
    factor_ = reinterpret_cast<Factor*>(scratch);
    b_ = reinterpret_cast<float*>(factor_ + 1);
    a_ = b_ + P_, gain_ = a_ + P_, score_ = gain_ + P_, trial_ = score_ + P_, rows_ = trial_ + P_;
    own_power_ = rows_ + static_cast<long>(model.active) * P_, own_rows_ = own_power_ + P_;
  }

  // The states of the point with the given projection b = W'y and energy y'y.
  void choose(const float* projection, float energy, Observed observed, Choice& out) {
    projection_ = projection;
    energy_ = energy;
    observed_ = observed;
    power_ = model_.power32;
    if (observed.features) measure();
    clear();
    climb();
    for (int moves = 0;; moves++) {
      const Move move = survey();
      if (moves == model_.moves || move.latent == kNone) break;
      make(move);
      climb();
    }
    pick(out);
  }

 private:
  static constexpr int kNone = -1, kOut = -2;

  struct Move {
    int position;  // in the set, of the latent that leaves; kNone if none does
    int latent;    // that enters: one of the others, the same one in another slab, or kOut for none. kNone: there is no move
    int slab;
    float gain;
  };

  struct alignas(64) Factor {
    float L[kMostActive][kMostActive], inverse[kMostActive][kMostActive];  // of I + V^1/2 A V^1/2, lower triangles
    float u[kMostActive], held[kMostActive];
    int latent[kMostActive], slab[kMostActive];
  };

  // Row j of A. Of a point with missing entries, good until kSpareRows further rows have been asked for.
  const float* gram_row(int j) {
    return observed_.features ? own_row(j) : model_.gram32 + static_cast<long>(j) * P_;
  }
  const float* own_row(int j) {
    const int room = model_.active + kSpareRows;
    const int known = kept_ < room ? kept_ : room;
    for (int r = 0; r < known; r++)
      if (kept_latent_[r] == j) return own_rows_ + static_cast<long>(r) * P_;
    const int place = kept_++ % room;
    kept_latent_[place] = j;
    float* row = own_rows_ + static_cast<long>(place) * P_;
    over_observed(row, [&](const float* w, VecF values) SPIKESLAB_LAMBDA { return w[j] * values; });
    return row;
  }
  // The diagonal of A, with no row known yet.
  void measure() {
    kept_ = 0;
    over_observed(own_power_, [](const float*, VecF values) SPIKESLAB_LAMBDA { return values * values; });
    power_ = own_power_;
  }
  // out = sum over the observed features of term(row of W, the latents' values in it).
  template <class Term>
  SPIKESLAB_MEMBER void over_observed(float* out, Term term) const {
    const auto columns = [&](auto tile, int i) SPIKESLAB_LAMBDA {
      constexpr int kWide = decltype(tile)::value;
      VecF sum[kWide] = {};
      for (int o = 0; o < observed_.count; o++) {
        const float* w = model_.mixing32 + static_cast<long>(observed_.features[o]) * P_;
        for (int t = 0; t < kWide; t++) sum[t] += term(w, load(w + i + t * kFloats));
      }
      for (int t = 0; t < kWide; t++) store(out + i + t * kFloats, sum[t]);
    };
    int i = 0;
    for (; i + 4 * kFloats <= P_; i += 4 * kFloats) columns(Size<4>{}, i);
    for (; i < P_; i += kFloats) columns(Size<1>{}, i);
  }

  float variance(int j, int c) const { return kPlain ? 1.0f : model_.variances32[c * P_ + j]; }
  float mean(int j, int c) const { return kPlain ? 0.0f : model_.means32[c * P_ + j]; }

  // Of latents that may explain an energy of at most `rest`. Where noise is tiny, what rounding leaves of b explains far more.
  SPIKESLAB_MEMBER VecF gain_in(int i, int c, VecF b, VecF a, VecF rest) const {
    const VecF odds = load(model_.log2_odds32 + c * P_ + i);
    constexpr float half = static_cast<float>(kHalfLog2E);
    if constexpr (kPlain) {
      const VecF q = a + 1.0f;
      return odds - 0.5f * log2_of(q) + half * minimum(b * b / q, rest);
    } else {
      const VecF v = load(model_.variances32 + c * P_ + i), m = load(model_.means32 + c * P_ + i);
      const VecF q = v * a + 1.0f;
      return odds - 0.5f * log2_of(q) + half * minimum((v * b * b + (2.0f * b - a * m) * m) / q, rest);
    }
  }
  // Gain of turning on the latents from i, each in its best slab.
  SPIKESLAB_MEMBER VecF gain_of(int i, VecF b, VecF a, float rest) const {
    const VecF most = broadcast_float(rest);
    VecF best = gain_in(i, 0, b, a, most);
    if constexpr (!kPlain)
      for (int c = 1; c < model_.slabs; c++) best = maximum(best, gain_in(i, c, b, a, most));
    return best;
  }
  float explained(int j, int c, float b, float a, float rest) const {
    const float v = variance(j, c), m = mean(j, c), energy = (v * b * b + (2 * b - a * m) * m) / (1 + v * a);
    return energy < rest ? energy : rest;
  }
  float gain_at(int j, int c, float b, float a, float rest) const {
    return model_.log2_odds32[c * P_ + j] - 0.5f * log2f(1 + variance(j, c) * a) +
           static_cast<float>(kHalfLog2E) * explained(j, c, b, a, rest);
  }
  int best_slab(int j, float b, float a) const {
    int best = 0;
    for (int c = 1; c < model_.slabs; c++)
      if (gain_at(j, c, b, a, rest_) > gain_at(j, best, b, a, rest_)) best = c;
    return best;
  }

  void clear() {
    size_ = 0;
    shift_ = 0;
    rest_ = energy_;
    for (int i = 0; i < P_; i += kFloats) {
      const VecF b = load(projection_ + i), a = load(power_ + i);
      store(b_ + i, b);
      store(a_ + i, a);
      store(gain_ + i, gain_of(i, b, a, rest_));
    }
  }

  void add(int j, int c) {
    Factor& f = *factor_;
    const float v = variance(j, c), m = mean(j, c), a = a_[j], b = b_[j], q = 1 + v * a;
    const float t = m + v * (b - a * m) / q, root = sqrtf(v / q), deviation = sqrtf(v);
    shift_ += gain_at(j, c, b, a, rest_);
    rest_ -= explained(j, c, b, a, rest_);
    float along[kMostActive];
    for (int l = 0; l < size_; l++) {
      along[l] = rows_[static_cast<long>(l) * P_ + j];
      f.L[size_][l] = deviation * along[l];
    }
    f.L[size_][size_] = sqrtf(q);
    f.latent[size_] = j;
    f.slab[size_] = c;
    const float* row = gram_row(j);
    float* mine = rows_ + static_cast<long>(size_) * P_;
    for (int i = 0; i < P_; i += kFloats) {
      VecF g = load(row + i);
      for (int l = 0; l < size_; l++) g -= along[l] * load(rows_ + static_cast<long>(l) * P_ + i);
      const VecF b1 = load(b_ + i) - g * t;
      g *= root;
      store(mine + i, g);
      const VecF a1 = maximum(load(a_ + i) - g * g, VecF{});
      store(b_ + i, b1);
      store(a_ + i, a1);
      store(gain_ + i, gain_of(i, b1, a1, rest_));
    }
    size_++;
    for (int l = 0; l < size_; l++) gain_[f.latent[l]] = kNever32;
  }

  void climb() {
    while (size_ < model_.active) {
      float gain;
      const int j = place_of_largest(gain_, P_, &gain);
      if (!(gain > 0)) break;
      add(j, best_slab(j, b_[j], a_[j]));
    }
  }

  // The score of every latent; returns the best move, if there is one.
  Move survey() {
    Factor& f = *factor_;
    memcpy(score_, gain_, sizeof(float) * P_);
    Move best = {kNone, kNone, 0, kLeastGain};
    for (int i = 0; i < size_; i++) {  // u = L^-1 V^1/2 (b - A m)
      const int latent = f.latent[i];
      float u = projection_[latent];
      if constexpr (!kPlain)
        for (int l = 0; l < size_; l++) u -= gram_row(latent)[f.latent[l]] * mean(f.latent[l], f.slab[l]);
      u *= sqrtf(variance(latent, f.slab[i]));
      for (int l = 0; l < i; l++) u -= f.L[i][l] * f.u[l];
      const float scale = 1 / f.L[i][i];
      f.u[i] = u * scale;
      for (int j = 0; j < i; j++) {
        float sum = 0;
        for (int l = j; l < i; l++) sum -= f.L[i][l] * f.inverse[l][j];
        f.inverse[i][j] = sum * scale;
      }
      f.inverse[i][i] = scale;
    }
    for (int h = 0; h < size_; h++) {
      float lambda = 0, x = 0;
      for (int l = h; l < size_; l++) {
        lambda += f.inverse[l][h] * f.inverse[l][h];
        x += f.inverse[l][h] * f.u[l];
      }
      // what the latent sees without itself
      const int latent = f.latent[h], slab = f.slab[h];
      const float v = variance(latent, slab), m = mean(latent, slab), deviation = sqrtf(v), q = 1 / lambda;
      const float a = (q - 1) / v, b = x * q / deviation + a * m;
      const float removal = -gain_at(latent, slab, b, a, energy_);
      f.held[h] = removal;
      if (removal > best.gain) best = {h, kOut, 0, removal};
      for (int c = 0; c < model_.slabs; c++) {
        if (kPlain || c == slab) continue;
        const float gain = removal + gain_at(latent, c, b, a, energy_);
        f.held[h] = gain > f.held[h] ? gain : f.held[h];
        if (gain > best.gain) best = {h, latent, c, gain};
      }
      if (removal < kHeld) continue;
      const float pull = q * (m / deviation + x);
      for (int i = 0; i < P_; i += kFloats) {
        VecF V{};
        for (int l = h; l < size_; l++) V += f.inverse[l][h] * load(rows_ + static_cast<long>(l) * P_ + i);
        const VecF gain = gain_of(i, load(b_ + i) + pull * V, load(a_ + i) + q * (V * V), energy_) + removal;
        store(trial_ + i, gain);
        store(score_ + i, maximum(load(score_ + i), gain));
      }
      for (int l = 0; l < size_; l++) trial_[f.latent[l]] = kNever32;
      float gain;
      const int j = place_of_largest(trial_, P_, &gain);
      f.held[h] = gain > f.held[h] ? gain : f.held[h];
      if (gain > best.gain) best = {h, j, kNone, gain};
    }
    for (int h = 0; h < size_; h++) score_[f.latent[h]] = f.held[h];
    return best;
  }

  void make(Move move) {
    int latent[kMostActive], slab[kMostActive], count = 0;
    for (int l = 0; l < size_; l++)
      if (l != move.position) {
        latent[count] = factor_->latent[l];
        slab[count++] = factor_->slab[l];
      }
    clear();
    for (int l = 0; l < count; l++) add(latent[l], slab[l]);
    if (move.latent >= 0)
      add(move.latent, move.slab >= 0 ? move.slab : best_slab(move.latent, b_[move.latent], a_[move.latent]));
  }

  // Frees the latents with the best scores.
  void pick(Choice& out) const {
    const int wanted = model_.free;
    float best[kMostFree];
    int found = 0;
    for (int i = 0; i < model_.latents; i++) {
      const float score = score_[i];
      if (found == wanted && !(score > best[found - 1])) continue;
      int place = found < wanted ? found++ : found - 1;
      for (; place > 0 && best[place - 1] < score; place--) {
        best[place] = best[place - 1];
        out.latent[place] = out.latent[place - 1];
      }
      best[place] = score;
      out.latent[place] = i;
    }
    for (int i = 0; i < wanted; i++) out.slab[i] = -1;
    out.clamped = 0;
    for (int l = 0; l < size_; l++) {
      int place = 0;
      while (place < wanted && out.latent[place] != factor_->latent[l]) place++;
      if (place == wanted) {
        place += out.clamped++;
        out.latent[place] = factor_->latent[l];
      }
      out.slab[place] = factor_->slab[l];
    }
    out.shift = shift_;
  }

  const TruncatedModel& model_;
  const int P_;
  Factor* factor_;
  const float *projection_ = nullptr, *power_ = nullptr;
  Observed observed_ = {nullptr, 0};
  float *b_, *a_, *gain_, *score_, *trial_;  // b and a given the set; gains; best moves; one latent's exchanges
  float* rows_;                              // L^-1 V^1/2 A, one row for each latent of the set
  float *own_power_, *own_rows_;             // of a point with missing entries: the diagonal of A, and rows of it
  int kept_ = 0, kept_latent_[kMostActive + kSpareRows];  // rows that were computed, and of which latents they are
  int size_ = 0;
  float shift_ = 0, energy_ = 0, rest_ = 0;  // rest: what of the energy the set does not explain
};

// ---- the cube: exact inside it ----

// What one slab does to the pivot h, and back: see truncated.hpp.
template <bool kPlain>
struct Pivot {
  Vec root, inverse, along, s, t, v, m;  // 1 / sqrt(q), 1 / q, and that again unless the others explain the latent wholly

  SPIKESLAB_MEMBER Pivot(Vec a, Vec b, Vec variance, Vec mean) : v(variance), m(mean) {
    const Bits seen = a > Vec{};  // where noise is tiny, rounding leaves this squared length anywhere around 0
    a = (Vec)((Bits)a & seen);
    if constexpr (kPlain) {
      root = inverse_root(a + 1.0);
      inverse = root * root;
      along = (Vec)((Bits)inverse & seen);
      s = t = along * b;
    } else {
      root = inverse_root(v * a + 1.0);
      inverse = root * root;
      along = (Vec)((Bits)inverse & seen);
      s = along * (b - a * m);
      t = m + v * s;
    }
  }

  // log2 of its factor of the weight, but for the odds and the root; at most what is left to explain (the log2 weight of a perfect
  // fit less that of the latents before), which rounding may exceed by far where noise is tiny.
  SPIKESLAB_MEMBER Vec weight(Vec b, Vec rest) const {
    if constexpr (kPlain) return minimum(kHalfLog2E * (b * t), rest);
    return minimum(kHalfLog2E * (b * t + m * s), rest);
  }

  // g and the coefficients of the h latents below.
  SPIKESLAB_MEMBER void fall(int h, const Vec* A, const Vec* b, Vec* g, Vec* A1, Vec* b1) const {
    const Vec* row = A + triangle(h);
    for (int j = 0; j < h; j++) {
      g[j] = along * row[j];
      b1[j] = b[j] - t * row[j];
      const Vec factor = kPlain ? g[j] : v * g[j];
      for (int k = 0; k <= j; k++) A1[triangle(j) + k] = A[triangle(j) + k] - factor * row[k];
    }
  }

  // Moments of h from those of the h latents below: its mean, its row of S, and the slopes G and R.
  SPIKESLAB_MEMBER void rise(int h, Vec a, const Vec* g, Vec P, const Vec* E, const Vec* S, Vec& mean, Vec* row, Vec& G,
                             Vec& R) const {
    G = s * P;
    for (int j = 0; j < h; j++) G -= g[j] * E[j];
    Vec square = s * G;
    for (int j = 0; j < h; j++) {
      Vec c = s * E[j];
      for (int k = 0; k <= j; k++) c -= g[k] * S[triangle(j) + k];
      for (int k = j + 1; k < h; k++) c -= g[k] * S[triangle(k) + j];
      square -= g[j] * c;
      row[j] = kPlain ? c : m * E[j] + v * c;
    }
    if constexpr (kPlain) {
      mean = G;
      row[h] = square + inverse * P;
    } else {
      mean = m * P + v * G;
      row[h] = m * (m * P + 2.0 * v * G) + v * (v * square + inverse * P);
      R = square - a * inverse * P;
    }
  }
};

// One vector of points with the same number of free latents.
template <bool kPlain>
struct Cube {
  int slabs;
  const Vec *odds, *variances, *means;  // free latents x slabs
  Vec *counts, *slopes, *bends;         // the same, added up on the way; only counts where kPlain

  // The cube's mass with its moments. kM is the number of latents, or 0 where it is known at run time only.
  template <int kM>
  SPIKESLAB_MEMBER void expect_here(int m, const Vec* A, const Vec* b, Vec w, Vec rest, Vec scale, Vec& mass, Vec* E, Vec* S) const {
    constexpr int kRoom = kM ? kM : kMostFree;
    const int h = (kM ? kM : m) - 1;
    expect<kM>(h, A, b, w, rest, scale, mass, E, S);
    Vec* row = S + triangle(h);
    if constexpr (!kPlain) {
      E[h] = Vec{};
      for (int j = 0; j <= h; j++) row[j] = Vec{};
    }
    for (int c = 0; c < (kPlain ? 1 : slabs); c++) {
      const int at = kPlain ? h : h * slabs + c;
      Vec A1[triangle(kRoom - 1) + 1], b1[kRoom], g[kRoom], E1[kRoom], S1[triangle(kRoom - 1) + 1], row1[kRoom], P, e, G, R;
      const Pivot<kPlain> pivot(A[triangle(h) + h], b[h], kPlain ? Vec{} : variances[at], kPlain ? Vec{} : means[at]);
      pivot.fall(h, A, b, g, A1, b1);
      const Vec gain = pivot.weight(b[h], rest);
      expect<kM>(h, A1, b1, w + odds[at] + gain, rest - gain, scale * pivot.root, P, E1, S1);
      pivot.rise(h, A[triangle(h) + h], g, P, E1, S1, e, kPlain ? row : row1, G, R);
      mass += P;
      counts[at] += P;
      for (int j = 0; j < h; j++) E[j] += E1[j];
      for (int j = 0; j < triangle(h); j++) S[j] += S1[j];
      if constexpr (kPlain) {
        E[h] = e;
      } else {
        slopes[at] += G;
        bends[at] += R;
        E[h] += e;
        for (int j = 0; j <= h; j++) row[j] += row1[j];
      }
    }
  }
  template <int kM>
  __attribute__((noinline)) void expect_there(int m, const Vec* A, const Vec* b, Vec w, Vec rest, Vec scale, Vec& mass, Vec* E,
                                              Vec* S) const {
    expect_here<kM>(m, A, b, w, rest, scale, mass, E, S);
  }
  // The same below a node of kAbove latents.
  template <int kAbove>
  SPIKESLAB_MEMBER void expect(int m, const Vec* A, const Vec* b, Vec w, Vec rest, Vec scale, Vec& mass, Vec* E, Vec* S) const {
    if constexpr (kAbove == 1) {
      mass = scale * exp2(minimum(w, broadcast(kLargestLog2)));
    } else if constexpr (kAbove == 2 || kAbove == 3) {
      expect_here<kAbove - 1>(m, A, b, w, rest, scale, mass, E, S);
    } else if constexpr (kAbove > 0) {
      expect_there<kAbove - 1>(m, A, b, w, rest, scale, mass, E, S);
    } else {
      start(m, A, b, w, rest, scale, mass, E, S);
    }
  }
  void start(int m, const Vec* A, const Vec* b, Vec w, Vec rest, Vec scale, Vec& mass, Vec* E, Vec* S) const {
    switch (m) {
      case 1: return expect_there<1>(m, A, b, w, rest, scale, mass, E, S);
      case 2: return expect_there<2>(m, A, b, w, rest, scale, mass, E, S);
      case 3: return expect_there<3>(m, A, b, w, rest, scale, mass, E, S);
      case 4: return expect_there<4>(m, A, b, w, rest, scale, mass, E, S);
      case 5: return expect_there<5>(m, A, b, w, rest, scale, mass, E, S);
      case 6: return expect_there<6>(m, A, b, w, rest, scale, mass, E, S);
      case 7: return expect_there<7>(m, A, b, w, rest, scale, mass, E, S);
      case kUnrolled: return expect_there<kUnrolled>(m, A, b, w, rest, scale, mass, E, S);
      default: return expect_there<0>(m, A, b, w, rest, scale, mass, E, S);
    }
  }

  // The cube's mass alone, or with kMaximum its largest log2 weight but for the roots.
  template <bool kMaximum>
  Vec weigh(int m, const Vec* A, const Vec* b, Vec w, Vec rest, Vec scale) const {
    if (m == 0) return kMaximum ? w : scale * exp2(minimum(w, broadcast(kLargestLog2)));
    const int h = m - 1;
    Vec total = weigh<kMaximum>(h, A, b, w, rest, scale);
    for (int c = 0; c < (kPlain ? 1 : slabs); c++) {
      const int at = kPlain ? h : h * slabs + c;
      Vec A1[triangle(kMostFree)], b1[kMostFree], g[kMostFree];
      const Pivot<kPlain> pivot(A[triangle(h) + h], b[h], kPlain ? Vec{} : variances[at], kPlain ? Vec{} : means[at]);
      pivot.fall(h, A, b, g, A1, b1);
      const Vec gain = pivot.weight(b[h], rest);
      const Vec more = weigh<kMaximum>(h, A1, b1, w + odds[at] + gain, rest - gain, scale * pivot.root);
      total = kMaximum ? maximum(total, more) : total + more;
    }
    return total;
  }
};

// ---- a chunk of points: project, search, and vector by vector the exact part ----

// out = y W for `count` points, four by four; there are rows for a multiple of four.
void project(const TruncatedModel& model, int count, const float* y, float* out) {
  const int P = model.padded_latents, stride = model.padded_features;
  constexpr int kTile = kLanes >= 8 ? 4 : 2;  // what the registers hold
  for (int p = 0; p < count; p += 4) {
    const auto columns = [&](auto tile, int i) SPIKESLAB_LAMBDA {
      constexpr int kWide = decltype(tile)::value;
      VecF sum[4][kWide] = {};
      for (int d = 0; d < model.features; d++) {
        const float* w = model.mixing32 + static_cast<long>(d) * P + i;
        for (int k = 0; k < 4; k++) {
          const VecF value = broadcast_float(y[(p + k) * stride + d]);
          for (int t = 0; t < kWide; t++) sum[k][t] += value * load(w + t * kFloats);
        }
      }
      for (int k = 0; k < 4; k++)
        for (int t = 0; t < kWide; t++) store(out + static_cast<long>(p + k) * P + i + t * kFloats, sum[k][t]);
    };
    int i = 0;
    for (; i + kTile * kFloats <= P; i += kTile * kFloats) columns(Size<kTile>{}, i);
    for (; i < P; i += kFloats) columns(Size<1>{}, i);
  }
}

double dot(const double* a, const double* b, int n) {
  Vec sum{};
  for (int d = 0; d < n; d += kLanes) sum += load(a + d) * load(b + d);
  return sum_lanes(sum);
}

// Hands out aligned pieces of one buffer; without a buffer it only counts.
struct Pieces {
  double* at;
  long used = 0;
  template <class T>
  T* take(long count) {
    T* piece = at ? reinterpret_cast<T*>(at + used) : nullptr;
    used += (count * static_cast<long>(sizeof(T)) + 63) / 64 * 8;
    return piece;
  }
};

template <bool kPlain>
class Chunk {
 public:
  Chunk(const TruncatedModel& model, Pieces& pieces) : model_(model) {
    const int most = model.free + model.active, cells = model.free * model.slabs;
    y_ = pieces.take<double>(static_cast<long>(kChunk) * model.padded_features);
    y32_ = pieces.take<float>(static_cast<long>(kChunk) * model.padded_features);
    seen_ = pieces.take<double>(static_cast<long>(kChunk) * model.padded_features);
    part_ = pieces.take<double>(model.padded_features);
    observed_ = pieces.take<int>(model.features);
    covariance_ = pieces.take<double>(static_cast<long>(most) * most);
    projection_ = pieces.take<float>(static_cast<long>(kChunk) * model.padded_latents);
    choice_ = pieces.take<Choice>(kChunk);
    search_ = pieces.take<double>(Search<kPlain>::scratch(model));
    A_ = pieces.take<Vec>(triangle(most));
    S_ = pieces.take<Vec>(triangle(most));
    b_ = pieces.take<Vec>(most);
    E_ = pieces.take<Vec>(most);
    g_ = pieces.take<Vec>(most);
    rows_ = pieces.take<Vec>(most);
    pivots_ = pieces.take<Pivot<kPlain>>(model.active);
    slopes_ = pieces.take<Vec>(model.active);
    bends_ = pieces.take<Vec>(model.active);
    for (Vec*& values : free_) values = pieces.take<Vec>(cells);
  }

  void run(long first, int count, const TruncatedPoints& points, const TruncatedSums* sums, const TruncatedStates* states) {
    read(points.y + first * model_.features, count);
    project(model_, count, y32_, projection_);
    Search<kPlain> search(model_, search_);
    for (int i = 0; i < count; i++) {
      const double* y = y_ + static_cast<long>(i) * model_.padded_features;
      const float energy = static_cast<float>(dot(y, y, model_.padded_features));
      search.choose(projection_ + static_cast<long>(i) * model_.padded_latents, energy, observed(i), choice_[i]);
    }
    if (states) {
      for (int i = 0; i < count; i++) write(choice_[i], first + i, *states);
      return;
    }
    // by the number of latents that stay on, so that lanes have about the same work
    int starts[kMostActive + 2] = {}, order[kChunk];
    for (int i = 0; i < count; i++) starts[choice_[i].clamped + 1]++;
    for (int c = 0; c <= kMostActive; c++) starts[c + 1] += starts[c];
    for (int i = 0; i < count; i++) order[starts[choice_[i].clamped]++] = i;
    const bool each = points.mean || points.probabilities || points.spread || points.predicted;
    for (int i = 0; i < count; i += kLanes) {
      const int lanes = count - i < kLanes ? count - i : kLanes;
      gather(order + i, lanes);
      weigh(sums || each, lanes, first, points.log_ratio);
      if (!sums && !each) continue;
      finish();
      for (int l = 0; l < lanes; l++) {
        const double weight = points.weights ? points.weights[first + members_[l]] : 1.0;
        if (sums) add(l, weight, *sums);
        if (sums && holed_[members_[l]]) complete(l, weight, *sums);
        if (each) write(l, first + members_[l], points);
      }
    }
  }

 private:
  enum { kOdds, kVariances, kMeans, kCounts, kSlopes, kBends, kArrays };

  void read(const double* y, int count) {
    const int stride = model_.padded_features;
    memset(y_, 0, sizeof(double) * kChunk * stride);
    memset(y32_, 0, sizeof(float) * kChunk * stride);
    for (int i = 0; i < count; i++) {
      bool holed = false;
      for (int d = 0; d < model_.features; d++) {
        const double value = y[static_cast<long>(i) * model_.features + d];
        y_[i * stride + d] = value;
        y32_[i * stride + d] = static_cast<float>(value);
        holed |= value != value;
      }
      holed_[i] = holed;
      if (!holed) continue;
      memset(seen_ + i * stride, 0, sizeof(double) * stride);
      for (int d = 0; d < model_.features; d++) {
        if (y_[i * stride + d] == y_[i * stride + d]) {
          seen_[i * stride + d] = 1;
        } else {
          y_[i * stride + d] = y32_[i * stride + d] = 0;
        }
      }
    }
  }

  Observed observed(int i) {
    if (!holed_[i]) return {nullptr, 0};
    int count = 0;
    for (int d = 0; d < model_.features; d++)
      if (seen_[static_cast<long>(i) * model_.padded_features + d] != 0) observed_[count++] = d;
    return {observed_, count};
  }

  // The part of a latent's row of W that a point with missing entries sees.
  const double* seen_row(int point, int latent) {
    const int stride = model_.padded_features;
    const double* row = model_.mixing + static_cast<long>(latent) * stride;
    const double* seen = seen_ + static_cast<long>(point) * stride;
    for (int d = 0; d < stride; d += kLanes) store(part_ + d, load(row + d) * load(seen + d));
    return part_;
  }

  static double* lane(Vec* x, long at, int l) { return reinterpret_cast<double*>(x) + at * kLanes + l; }

  // A, b and the slabs of up to kLanes points, one a lane.
  void gather(const int* members, int lanes) {
    const int n = model_.latents, slabs = model_.slabs, stride = model_.padded_features;
    clamped_ = 0;
    for (int l = 0; l < kLanes; l++) {
      members_[l] = members[l < lanes ? l : 0];
      const int clamped = choice_[members_[l]].clamped;
      clamped_ = clamped > clamped_ ? clamped : clamped_;
    }
    const int involved = model_.free + clamped_;
    for (int l = 0; l < kLanes; l++) {
      const Choice& choice = choice_[members_[l]];
      const double* y = y_ + static_cast<long>(members_[l]) * stride;
      const int mine = model_.free + choice.clamped;
      for (int j = 0; j < mine; j++) {
        if (holed_[members_[l]]) {
          const double* row = seen_row(members_[l], choice.latent[j]);
          for (int k = 0; k <= j; k++)
            *lane(A_, triangle(j) + k, l) = dot(row, model_.mixing + static_cast<long>(choice.latent[k]) * stride, stride);
        } else {
          const double* row = model_.gram + static_cast<long>(choice.latent[j]) * n;
          for (int k = 0; k <= j; k++) *lane(A_, triangle(j) + k, l) = row[choice.latent[k]];
        }
        *lane(b_, j, l) = dot(model_.mixing + static_cast<long>(choice.latent[j]) * stride, y, stride);
      }
      for (int j = mine; j < involved; j++) {  // makes no difference
        for (int k = 0; k <= j; k++) *lane(A_, triangle(j) + k, l) = 0;
        *lane(b_, j, l) = 0;
      }
      for (int j = 0; j < model_.free; j++)
        for (int c = 0; c < slabs; c++) {
          const long from = static_cast<long>(choice.latent[j]) * slabs + c, to = j * slabs + c;
          *lane(free_[kOdds], to, l) = model_.log2_odds[from];
          if constexpr (!kPlain) {
            *lane(free_[kVariances], to, l) = model_.variances[from];
            *lane(free_[kMeans], to, l) = model_.means[from];
          }
        }
      shift_[l] = isfinite(choice.shift) ? choice.shift : 0;  // beyond single precision
      double odds = 0;
      for (int j = model_.free; j < mine; j++)
        odds += model_.log2_odds[static_cast<long>(choice.latent[j]) * slabs + choice.slab[j]];
      *lane(&start_, 0, l) = odds - shift_[l];
      *lane(&rest_, 0, l) = kHalfLog2E * dot(y, y, stride);
    }
  }

  Vec slab_value(const double* values, int j) const {
    Vec result;
    for (int l = 0; l < kLanes; l++) {
      const Choice& choice = choice_[members_[l]];
      const bool mine = j < model_.free + choice.clamped;
      result[l] = mine ? values[static_cast<long>(choice.latent[j]) * model_.slabs + choice.slab[j]] : 0.0;
    }
    return result;
  }

  // The evidence of the lanes' cubes; with moments those of the free latents too, all relative to the mass.
  void weigh(bool moments, int lanes, long first, double* log_ratio) {
    const int free = model_.free, slabs = model_.slabs;
    Vec w = start_, rest = rest_, roots = broadcast(1.0);
    for (int h = free + clamped_ - 1; h >= free; h--) {
      Pivot<kPlain>& pivot = pivots_[h - free];
      pivot = Pivot<kPlain>(A_[triangle(h) + h], b_[h], kPlain ? Vec{} : slab_value(model_.variances, h),
                            kPlain ? Vec{} : slab_value(model_.means, h));
      const Vec gain = pivot.weight(b_[h], rest);
      w += gain;
      rest -= gain;
      roots *= pivot.root;
      pivot.fall(h, A_, b_, g_, A_, b_);
      if ((h - free) % 16 == 0)
        for (int l = 0; l < kLanes; l++) {
          w[l] += log2(roots[l]);
          roots[l] = 1.0;
        }
    }
    const Cube<kPlain> cube{slabs,        free_[kOdds],   free_[kVariances], free_[kMeans],
                            free_[kCounts], free_[kSlopes], free_[kBends]};
    const auto walk = [&]() {
      if (!moments) {
        mass_ = cube.template weigh<false>(free, A_, b_, w, rest, broadcast(1.0));
        return;
      }
      for (int i = 0; i < free * slabs; i++) free_[kCounts][i] = free_[kSlopes][i] = free_[kBends][i] = Vec{};
      cube.start(free, A_, b_, w, rest, broadcast(1.0), mass_, E_, S_);
    };
    walk();
    if (!all_safe()) {  // the best set was not nearly the best: it was full, or single precision misled
      const Vec largest = cube.template weigh<true>(free, A_, b_, w, rest, Vec{});
      w -= largest;
      for (int l = 0; l < kLanes; l++) shift_[l] += largest[l];
      walk();
      for (int l = 0; l < kLanes; l++)
        if (!is_safe(l)) give_up(l, moments);
    }
    for (int l = 0; l < lanes; l++) log_ratio[first + members_[l]] = kLn2 * (log2(mass_[l]) + shift_[l]);
  }

  bool is_safe(int l) const { return mass_[l] < kSafeMass && mass_[l] > 1 / kSafeMass; }
  bool all_safe() const {
    bool safe = true;
    for (int l = 0; l < kLanes; l++) safe = safe && is_safe(l);
    return safe;
  }

  // A point so far out (beyond 10^8 deviations of the noise) that log weights have no digit behind the point: its free latents
  // count as zero, which keeps everything finite.
  void give_up(int l, bool moments) {
    mass_[l] = 1;
    if (!moments) return;
    for (int j = 0; j < model_.free; j++) E_[j][l] = 0;
    for (int j = 0; j < triangle(model_.free); j++) S_[j][l] = 0;
    for (int i = 0; i < model_.free * model_.slabs; i++)
      free_[kCounts][i][l] = free_[kSlopes][i][l] = free_[kBends][i][l] = 0;
  }

  // Moments of all latents involved, normalised.
  void finish() {
    const int free = model_.free, involved = free + clamped_;
    const Vec inverse = 1.0 / mass_, one = broadcast(1.0);
    for (int j = 0; j < free; j++) E_[j] *= inverse;
    for (int j = 0; j < triangle(free); j++) S_[j] *= inverse;
    for (int i = 0; i < free * model_.slabs; i++) {
      free_[kCounts][i] *= inverse;
      if constexpr (!kPlain) {
        free_[kSlopes][i] *= inverse;
        free_[kBends][i] *= inverse;
      }
    }
    for (int h = free; h < involved; h++) {
      const Pivot<kPlain>& pivot = pivots_[h - free];
      const Vec* row = A_ + triangle(h);
      for (int j = 0; j < h; j++) g_[j] = pivot.along * row[j];
      pivot.rise(h, row[h], g_, one, E_, S_, E_[h], S_ + triangle(h), slopes_[h - free], bends_[h - free]);
    }
  }

  void add(int l, double weight, const TruncatedSums& sums) {
    const Choice& choice = choice_[members_[l]];
    const double* y = y_ + static_cast<long>(members_[l]) * model_.padded_features;
    const int free = model_.free, slabs = model_.slabs, n = model_.latents, stride = model_.padded_features;
    for (int j = 0; j < free + choice.clamped; j++) {
      const int h = choice.latent[j];
      const double mean = *lane(E_, j, l);
      for (int c = 0; c < slabs; c++) {
        const bool on = j >= free;
        if (on && c != choice.slab[j]) continue;
        const long to = static_cast<long>(h) * slabs + c, from = j * slabs + c;
        const double count = on ? 1.0 : *lane(free_[kCounts], from, l);
        sums.counts[to] += weight * count;
        if constexpr (kPlain) {
          sums.slopes[to] += weight * mean;
          sums.bends[to] += weight * (*lane(S_, triangle(j) + j, l) - count);
        } else {
          sums.slopes[to] += weight * (on ? *lane(slopes_, j - free, l) : *lane(free_[kSlopes], from, l));
          sums.bends[to] += weight * (on ? *lane(bends_, j - free, l) : *lane(free_[kBends], from, l));
        }
      }
      double* cross = sums.cross + static_cast<long>(h) * stride;
      const Vec amount = broadcast(weight * mean);
      for (int d = 0; d < stride; d += kLanes)
        *reinterpret_cast<Loose*>(cross + d) += amount * load(y + d);
      for (int k = 0; k <= j; k++) {
        const int i = choice.latent[k];
        double* to = i < h ? sums.outer + static_cast<long>(h) * n + i : sums.outer + static_cast<long>(i) * n + h;
        *to += weight * *lane(S_, triangle(j) + k, l);
      }
    }
  }

  // Covariances of the latents involved in a point, a full matrix.
  void spread_out(int l, int involved) {
    for (int j = 0; j < involved; j++)
      for (int k = 0; k <= j; k++) {
        const double covariance = *lane(S_, triangle(j) + k, l) - *lane(E_, j, l) * *lane(E_, k, l);
        covariance_[j * involved + k] = covariance_[k * involved + j] = covariance;
      }
  }

  // Calls use(d, mean, variance) with those of W x in the features from d, kLanes of them, and before that use_latent(d, k,
  // mean, covariance) with the covariance of W x and the k-th latent involved. Needs spread_out.
  template <class Use, class UseLatent>
  SPIKESLAB_MEMBER void predict(int l, int involved, Use use, UseLatent use_latent) {
    const int stride = model_.padded_features;
    const Choice& choice = choice_[members_[l]];
    for (int d = 0; d < stride; d += kLanes) {
      Vec mean{}, variance{};
      for (int j = 0; j < involved; j++) {
        rows_[j] = load(model_.mixing + static_cast<long>(choice.latent[j]) * stride + d);
        mean += *lane(E_, j, l) * rows_[j];
      }
      for (int k = 0; k < involved; k++) {
        const double* with = covariance_ + k * involved;
        Vec covariance{};
        for (int j = 0; j < involved; j++) covariance += with[j] * rows_[j];
        variance += rows_[k] * covariance;
        use_latent(d, k, mean, covariance);
      }
      use(d, mean, variance);
    }
  }

  // Adds the expectations of the missing entries.
  void complete(int l, double weight, const TruncatedSums& sums) {
    const Choice& choice = choice_[members_[l]];
    const int stride = model_.padded_features, involved = model_.free + choice.clamped;
    const double* seen = seen_ + static_cast<long>(members_[l]) * stride;
    const auto amount = [&](int d) SPIKESLAB_LAMBDA { return weight * (1.0 - load(seen + d)); };
    const auto to = [](double* p) SPIKESLAB_LAMBDA -> Loose& { return *reinterpret_cast<Loose*>(p); };
    spread_out(l, involved);
    predict(
        l, involved,
        [&](int d, Vec mean, Vec variance) SPIKESLAB_LAMBDA {
          to(sums.missing + d) += amount(d) * mean;
          to(sums.squares + d) += amount(d) * (mean * mean + variance + 1.0);
        },
        [&](int d, int k, Vec mean, Vec covariance) SPIKESLAB_LAMBDA {
          double* cross = sums.cross + static_cast<long>(choice.latent[k]) * stride;
          to(cross + d) += amount(d) * (covariance + *lane(E_, k, l) * mean);
        });
  }

  void write(int l, long point, const TruncatedPoints& points) {
    const Choice& choice = choice_[members_[l]];
    const int free = model_.free, slabs = model_.slabs, n = model_.latents, involved = free + choice.clamped;
    if (points.mean) {
      double* mean = points.mean + point * n;
      memset(mean, 0, sizeof(double) * n);
      for (int j = 0; j < involved; j++) mean[choice.latent[j]] = *lane(E_, j, l);
    }
    if (points.probabilities) {
      double* of_point = points.probabilities + point * n * slabs;
      memset(of_point, 0, sizeof(double) * n * slabs);
      for (int j = 0; j < involved; j++) {
        double* probability = of_point + static_cast<long>(choice.latent[j]) * slabs;
        if (j >= free) {
          probability[choice.slab[j]] = 1;
        } else {
          for (int c = 0; c < slabs; c++) probability[c] = *lane(free_[kCounts], j * slabs + c, l);
        }
      }
    }
    if (points.spread) {
      double total = 0;
      for (int j = 0; j < involved; j++) {
        const double* form = points.form + static_cast<long>(choice.latent[j]) * n;
        for (int k = 0; k <= j; k++) {
          const double covariance = *lane(S_, triangle(j) + k, l) - *lane(E_, j, l) * *lane(E_, k, l);
          total += (k < j ? 2 : 1) * form[choice.latent[k]] * covariance;
        }
      }
      points.spread[point] = total;
    }
    if (points.predicted) {
      double* predicted = points.predicted + point * model_.features;
      double* uncertain = points.uncertain + point * model_.features;
      spread_out(l, involved);
      predict(
          l, involved,
          [&](int d, Vec mean, Vec variance) SPIKESLAB_LAMBDA {
            for (int i = 0; i < kLanes && d + i < model_.features; i++) {
              predicted[d + i] = mean[i];
              uncertain[d + i] = variance[i] > 0 ? variance[i] : 0;
            }
          },
          [](int, int, Vec, Vec) SPIKESLAB_LAMBDA {});
    }
  }

  void write(const Choice& choice, long point, const TruncatedStates& states) const {
    const int free = model_.free;
    signed char* slab = states.slab + point * model_.latents;
    memset(slab, 0, model_.latents);
    for (int j = 0; j < free + choice.clamped; j++) slab[choice.latent[j]] = static_cast<signed char>(choice.slab[j] + 1);
    int* sorted = states.free + point * free;
    for (int j = 0; j < free; j++) {
      int place = j;
      for (; place > 0 && sorted[place - 1] > choice.latent[j]; place--) sorted[place] = sorted[place - 1];
      sorted[place] = choice.latent[j];
    }
  }

  typedef double Loose __attribute__((vector_size(kLanes * sizeof(double)), may_alias, aligned(8)));

  const TruncatedModel& model_;
  double *y_, *search_;          // y is 0 where it is missing
  float *y32_, *projection_;
  double *seen_, *part_;         // of points with missing entries: 1 where observed, else 0; scratch for a row of W
  int* observed_;                // scratch: the same of one point as a list
  bool holed_[kChunk];
  double* covariance_;           // of one point's latents
  Choice* choice_;
  Vec *A_, *b_, *g_, *rows_;     // of the group's points; g_ and rows_ are scratch
  Vec *E_, *S_;                  // moments, the free latents first
  Pivot<kPlain>* pivots_;        // of the latents that stay on
  Vec *slopes_, *bends_;         // of the same
  Vec* free_[kArrays];           // free latents x slabs
  Vec start_, rest_, mass_;  // rest: what is left to explain, as a log2 weight
  double shift_[kLanes];
  int members_[kLanes], clamped_ = 0;
};

template <bool kPlain>
void run(const TruncatedModel& model, const TruncatedPoints& points, const TruncatedSums* sums, const TruncatedStates* states) {
  Pieces counting{nullptr};
  Chunk<kPlain>(model, counting);
  Pieces pieces{workspace(Slot::kTruncated, counting.used)};
  Chunk<kPlain> chunk(model, pieces);
  for (long first = 0; first < points.count; first += kChunk) {
    const int count = points.count - first < kChunk ? static_cast<int>(points.count - first) : kChunk;
    chunk.run(first, count, points, sums, states);
  }
}

}  // namespace

void truncate(const TruncatedModel& model, const TruncatedPoints& points, const TruncatedSums* sums,
              const TruncatedStates* states) {
  model.plain ? run<true>(model, points, sums, states) : run<false>(model, points, sums, states);
}

}  // namespace SPIKESLAB_ISA
}  // namespace spikeslab
