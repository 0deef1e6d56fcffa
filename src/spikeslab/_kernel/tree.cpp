#include "tree.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace spikeslab {
namespace {

constexpr double kMaxStates = 1 << 24;
constexpr long kTabulatedLeaves = 8192;  // of a tree tabulated whole: its leaf weights stay in the cache
constexpr long kSubtreeLeaves = 1024;    // of the tables that a larger tree is cut into
constexpr int kLeafLatents[] = {0, 0, 4, 2, 1};  // by the number of components
constexpr int kMostUnrolled = 4;         // components
// Forward weights run from 2^kTop down to 2^-1021: as long as the best state is at most this many bits better than the
// reference, no point's evidence underflows.
constexpr double kMostBits = 1800;

int forward_stride(const Plan& plan) { return plan.layout.means ? 4 : 2; }

// log2 of the weight factor at delta = 0 of moving from the reference r to c when the pivot's variance is L; over_d is 1 / d.
double log2_weight(const Component& c, const Component& r, double L, double over_d) {
  const double gap = c.mean - r.mean;
  const double apart = gap == 0 ? 0 : (L + c.variance) * gap * gap * over_d / (2 * kLog2);
  return c.log2_odds + 0.5 * std::log2(r.variance * (r.variance * over_d)) + apart;
}

double denominator(const Component& c, const Component& r, double L) {
  return L * (r.variance - c.variance) + c.variance * r.variance;
}

// The child's matrix: the node's less `factor` times the outer product of the pivot's row. Returns what follows it.
double* eliminate(int n, const double* matrix, int stride, const double* row, double factor, double* child) {
  for (int i = 0; i < n; i++, matrix += stride, child += n) {
    const double scaled = factor * row[i];
    for (int j = 0; j <= i; j++) child[j] = matrix[j] - scaled * row[j];
  }
  return child;
}

}  // namespace

void forward_node(const Plan& plan, int m, const double* Lam, int stride, double* node, double* children) {
  const Level& level = plan.levels[m - 1];
  const double* row = Lam + static_cast<long>(m - 1) * stride;
  const Component& reference = level.components[level.count - 1];
  const double L = std::max(row[m - 1], level.least_variance);  // rounding must not take it below its bound
  for (int j = 0; j < m - 1; j++) node[j] = row[j];
  double* coefficients = node + m - 1;
  for (int k = 0; k < level.count - 1; k++, coefficients += forward_stride(plan)) {
    const Component& c = level.components[k];
    const double over_d = 1 / denominator(c, reference, L);
    const double kappa = (reference.variance - c.variance) * over_d;
    coefficients[0] = log2_weight(c, reference, L, over_d);
    coefficients[1] = kappa;
    if (plan.layout.means) {
      coefficients[2] = kUnit * c.mean;
      coefficients[3] = kUnit * c.variance * (c.mean - reference.mean) * over_d;
    }
    children = eliminate(m - 1, Lam, stride, row, kappa, children);
  }
}

void backward_node(const Plan& plan, int m, const double* A, int stride, double* node, double* children) {
  const Level& level = plan.levels[m - 1];
  const double* row = A + static_cast<long>(m - 1) * stride;
  const double Ahh = std::max(row[m - 1], 0.0);
  for (int j = 0; j < m - 1; j++) node[j] = row[j];
  double* coefficients = node + m - 1;
  for (int k = skipped(plan, m); k < level.count; k++, coefficients += 2) {
    const Component& c = level.components[k];
    const double over_q = 1 / (1 + c.variance * Ahh), tau = c.variance * over_q;
    coefficients[0] = tau;
    coefficients[1] = c.mean * over_q;
    children = eliminate(m - 1, A, stride, row, tau, children);
  }
}

long scratch_size(const Plan& plan, int m) {
  long size = 0;
  for (int i = 1; i <= m; i++) size += static_cast<long>(plan.levels[i - 1].count) * (i - 1) * (i - 1);
  return size;
}

void build_forward(const Plan& plan, int m, const double* Lam, int stride, double* table, double* scratch) {
  const int last = plan.levels[m - 1].count - 1;
  const long block = static_cast<long>(m - 1) * (m - 1), size = forward_size(plan, m - 1);
  forward_node(plan, m, Lam, stride, table, scratch);
  if (m == 1) return;
  double* child = table + m - 1 + last * forward_stride(plan);
  for (int k = 0; k < last; k++, child += size)
    build_forward(plan, m - 1, scratch + k * block, m - 1, child, scratch + last * block);
  build_forward(plan, m - 1, Lam, stride, child, scratch);
}

void build_backward(const Plan& plan, int m, const double* A, int stride, double* table, double* scratch) {
  const int moved = plan.levels[m - 1].count - skipped(plan, m);
  const long block = static_cast<long>(m - 1) * (m - 1), size = backward_size(plan, m - 1);
  backward_node(plan, m, A, stride, table, scratch);
  if (m == 1) return;
  double* child = table + m - 1 + 2 * moved;
  if (skipped(plan, m)) child += size;
  for (int k = 0; k < moved; k++, child += size)
    build_backward(plan, m - 1, scratch + k * block, m - 1, child, scratch + moved * block);
  if (skipped(plan, m)) build_backward(plan, m - 1, A, stride, child - (moved + 1) * size, scratch);
}

Tree::Tree(int n, int k, const double* A, const double* weights, const double* means, const double* variances) {
  plan_.latents = n;
  plan_.components = k;
  choose_components(weights, means, variances, A);
  choose_layout();
  prepare_reference(A);
  choose_start();
  if (plan_.tabulated == n) {
    std::vector<double> scratch(scratch_size(plan_, n));
    forward_.resize(forward_size(plan_, n));
    backward_.resize(backward_size(plan_, n));
    build_forward(plan_, n, Lam_.data(), n, forward_.data(), scratch.data());
    build_backward(plan_, n, A_.data(), n, backward_.data(), scratch.data());
    plan_.forward = forward_.data();
    plan_.backward = backward_.data();
  }
}

// A component without weight is no branch: that is what makes weights of 0 and 1 exact. Latents with fewer components
// go to the top of the tree, where the walk does not care how many there are.
void Tree::choose_components(const double* weights, const double* means, const double* variances, const double* A) {
  const int n = plan_.latents, k = plan_.components;
  kept_.reserve(static_cast<std::size_t>(n) * k);  // levels point into it
  states = 1;
  for (int h = 0; h < n; h++) {
    const std::size_t first = kept_.size();
    for (int c = 0; c < k; c++) {
      const int i = h * k + c;
      if (weights[i] > 0) kept_.push_back({weights[i], means[i], variances[i], c, 0});
    }
    Component* begin = kept_.data() + first;
    Component* end = kept_.data() + kept_.size();
    if (begin == end) throw std::invalid_argument("every latent needs a component with a positive weight");
    const auto narrower = [](const Component& a, const Component& b) { return a.variance < b.variance; };
    std::stable_sort(begin, end, narrower);
    if (end - begin > 1 && begin[1].variance == 0)
      throw std::invalid_argument("at most one component of a latent may have zero variance");
    const double broadest = end[-1].variance;
    for (Component* c = begin; c != end; c++) c->log2_odds = std::log2(c->weight / end[-1].weight);
    const double a = A[static_cast<long>(h) * n + h];
    levels_.push_back({h, static_cast<int>(end - begin), begin->variance == 0 && begin->mean == 0, begin, 0, 0, 0, 0,
                       broadest / (1 + broadest * std::max(a, 0.0))});
    states *= levels_.back().count;
  }
  if (states > kMaxStates) {
    std::ostringstream message;
    message << n << " latents have ";
    if (states < 1e15)
      message << static_cast<long long>(states);
    else
      message << states;
    message << " states, and exact inference visits each of them for every point: at "
            << "1 ns a state that is " << states * 1e-9 << " s per point and iteration. The limit is 2^24 = 16777216 states "
            << "(24 latents with 2 components, 15 with 3, 12 with 4): ask for fewer latents or fewer slabs.";
    throw std::invalid_argument(message.str());
  }
  std::stable_sort(levels_.begin(), levels_.end(), [](const Level& a, const Level& b) { return a.count > b.count; });
  plan_.levels = levels_.data();
}

void Tree::choose_layout() {
  const int n = plan_.latents, most = n ? levels_[0].count : 1;
  bool hard = true, centred = true;
  for (const Level& level : levels_) {
    hard = hard && (level.count == 1 || level.hard);
    for (int k = 0; k < level.count; k++) centred = centred && level.components[k].mean == 0;
  }
  Layout& layout = plan_.layout;
  layout = {0, false, true, 0, true};
  if (most > 1 && most <= kMostUnrolled) {
    layout.components = most;
    layout.hard = hard && most < kMostUnrolled;
    layout.sums_first = !(hard && most == 2);  // two components, one of them exactly zero
    layout.means = !(hard && most == 2 && centred);
    const int unrolled = std::min(n, kLeafLatents[most]);
    while (layout.leaf_latents < unrolled && levels_[layout.leaf_latents].count == most) layout.leaf_latents++;
  }
  plan_.tabulated = n;
  for (int m = 1; m <= n; m++) {
    Level& level = levels_[m - 1];
    const int moved = level.count - skipped(plan_, m);
    level.leaves = level.count * leaves(plan_, m - 1);
    level.forward_size = m - 1 + (level.count - 1) * forward_stride(plan_) + level.count * forward_size(plan_, m - 1);
    level.backward_size = m - 1 + 2 * moved + level.count * backward_size(plan_, m - 1);
    level.sums_size = moved * (m + layout.sums_first) + level.count * sums_size(plan_, m - 1);
  }
  if (leaves(plan_, n) > kTabulatedLeaves)
    while (leaves(plan_, plan_.tabulated) > kSubtreeLeaves) plan_.tabulated--;
}

// Lam = V^1/2 (I + V^1/2 A V^1/2)^-1 V^1/2, in the order of the levels; V may have zeros.
void Tree::prepare_reference(const double* A) {
  const int n = plan_.latents;
  const auto at = [n](int i, int j) { return static_cast<std::size_t>(i) * n + j; };
  reference_mean.resize(n);
  reference_variance.resize(n);
  reference_covariance.resize(at(n, 0));
  A_.resize(at(n, 0));
  Lam_.resize(at(n, 0));
  std::vector<double> root(n), factor(at(n, 0)), inverse(at(n, 0));
  log_constant = 0;
  for (int i = 0; i < n; i++) {
    const Level& level = levels_[i];
    const Component& reference = level.components[level.count - 1];
    reference_mean[level.latent] = reference.mean;
    reference_variance[level.latent] = reference.variance;
    root[i] = std::sqrt(reference.variance);
    log_constant += std::log(reference.weight);
    for (int j = 0; j < n; j++) A_[at(i, j)] = A[at(level.latent, levels_[j].latent)];
  }
  for (int i = 0; i < n; i++) {  // Cholesky factor, and its inverse row by row
    for (int j = 0; j <= i; j++) {
      double sum = (i == j) + root[i] * A_[at(i, j)] * root[j];
      for (int k = 0; k < j; k++) sum -= factor[at(i, k)] * factor[at(j, k)];
      factor[at(i, j)] = i == j ? std::sqrt(std::max(sum, 1.0)) : sum / factor[at(j, j)];
    }
    const double pivot = factor[at(i, i)];
    log_constant -= std::log(pivot);
    for (int j = 0; j <= i; j++) {
      double sum = i == j;
      for (int k = j; k < i; k++) sum -= factor[at(i, k)] * inverse[at(k, j)];
      inverse[at(i, j)] = sum / pivot;
    }
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j <= i; j++) {
      double sum = 0;
      for (int k = i; k < n; k++) sum += inverse[at(k, i)] * inverse[at(k, j)];
      Lam_[at(i, j)] = Lam_[at(j, i)] = root[i] * sum * root[j];
      const int outside_i = levels_[i].latent, outside_j = levels_[j].latent;
      reference_covariance[at(outside_i, outside_j)] = reference_covariance[at(outside_j, outside_i)] = Lam_[at(i, j)];
    }
  plan_.A = A_.data();
  plan_.Lam = Lam_.data();
}

// How many bits a state can be better than the reference, whatever the point: the largest value of each term of the forward
// weight over delta and over the pivot's variance, which lies between least_variance and v_r.
void Tree::choose_start() {
  double bits = 0;
  for (const Level& level : levels_) {
    const Component& r = level.components[level.count - 1];
    double most = 0;
    for (int k = 0; k < level.count - 1; k++) {
      const Component& c = level.components[k];
      const double gap = c.mean - r.mean, least = denominator(c, r, level.least_variance);
      double gain = c.log2_odds + 0.5 * std::log2(r.variance * (r.variance / least));
      if (gap != 0) {
        gain += (r.variance + c.variance) * gap * gap / (2 * r.variance * r.variance * kLog2);
        const double curvature = least * (r.variance - c.variance);
        const double peak = c.variance * gap;
        gain += curvature > 0 ? peak * peak / (2 * curvature * kLog2) : std::numeric_limits<double>::infinity();
      }
      most = std::max(most, gain);
    }
    bits += most;
  }
  plan_.start = bits <= kMostBits ? kTop - bits : std::numeric_limits<double>::infinity();
}

}  // namespace spikeslab
