// The elimination tree as plain data: everything about the posterior that does not depend on a data point.
//
// The posterior of one point is proportional to  prod_h sum_k w_hk N(x_h; m_hk, v_hk) * exp(b'x - x'Ax/2).
// A node of the tree has chosen components for some latents; its pivot is the last of the `m` latents that remain,
// and its children are the pivot's components. Two recursions walk the tree, and both touch only a node's own
// coefficients, which are tabulated depth first once per call:
//
// forward   Start from the reference state, every latent at its broadest component, whose posterior is
//           N(xhat, Lam) with Lam = (V^-1 + A)^-1. Moving the pivot from its reference (m_r, v_r) to another component
//           (w, m, v) multiplies the density by a Gaussian factor; with L = Lam_hh and d = L (v_r - v) + v v_r,
//               kappa = (v_r - v) / d,   alpha = v (m - m_r) / d,   delta = xhat_h - m,   t = kappa delta - alpha
//               log weight += log(w / w_r) + log(v_r^2 / d) / 2 + (L + v) (m - m_r)^2 / (2 d)
//                             + delta (alpha - kappa delta / 2)
//               xhat_j -= Lam_jh t,       Lam_jk -= Lam_jh Lam_kh kappa
//           The reference itself changes nothing. Weights relative to the reference keep the digits that absolute
//           log weights (of order |y|^2 / sigma^2) lose. v = 0 is conditioning on x_h = m.
// backward  Integrate the pivot out of exp(b'x - x'Ax/2): with q = 1 + v A_hh, tau = v / q, t = tau b_h + m / q,
//               b_j -= A_jh t,            A_jk -= A_jh A_kh tau
//           and on the way up, P being the mass and E the first moments below a child,
//               E_h = t P - tau sum_j A_hj E_j
//           A hard spike at zero changes nothing.
//
// Tables of a node with m remaining latents, pivot h = m - 1; the children's tables follow in the order of the components:
//   forward   Lam_h0 .. Lam_h,m-2, then per component but the reference (which is last): log2 weight, kappa [, m, alpha]
//   backward  A_h0 .. A_h,m-2, then per component but a hard spike (which is first): tau, m / q
//   sums      per component but a hard spike, over the points: t E_0 .. t E_m-2, t E_h + tau P [, E_h]
// xhat, m and alpha are stored multiplied by kUnit, which makes the forward quadratic come out in log2 units.
//
// Plain data with free functions, because this header reaches files compiled for several instruction sets.
#pragma once

namespace spikeslab {

constexpr double kUnit = 0.84932180028801904272;  // sqrt(log2(e) / 2)
constexpr double kLog2 = 0.69314718055994530942;
constexpr double kTop = 900;  // log2 of the largest weight that a state may have

struct Component {
  double weight, mean, variance;
  int index;         // its place in the caller's prior
  double log2_odds;  // log2 of its weight over the reference's
};

struct Level {  // one latent: the pivot of the nodes with m = (the level's position + 1) latents remaining
  int latent;   // its place in the caller's arrays
  int count;    // components with a positive weight
  bool hard;    // the first component is a spike at exactly zero
  const Component* components;                             // a hard spike first, the reference last
  long leaves, forward_size, backward_size, sums_size;     // of a node's whole subtree
  double least_variance;                                   // of the latent's posterior, whatever the others do
};

struct Layout {
  int components;    // of every latent in the leaf block; 0 without a leaf block
  bool hard;         // every latent of the leaf block has a hard spike
  bool means;        // forward nodes carry m and alpha
  int leaf_latents;  // the last latents, unrolled in registers
  bool sums_first;   // sums carry E_h; otherwise it follows from the outputs
};

struct Plan {
  int latents, components;  // as the caller's prior has them
  int tabulated;            // latents covered by one table: all of them, unless the tree is too large
  Layout layout;
  const Level* levels;
  const double *A, *Lam;              // in the order of the levels
  const double *forward, *backward;   // tables of the whole tree, where tabulated == latents
  double start;   // log2 weight of the reference state at which no state exceeds kTop; infinite: look for the maximum first
};

inline __attribute__((always_inline)) long leaves(const Plan& p, int m) { return m ? p.levels[m - 1].leaves : 1; }
inline __attribute__((always_inline)) long forward_size(const Plan& p, int m) {
  return m ? p.levels[m - 1].forward_size : 0;
}
inline __attribute__((always_inline)) long backward_size(const Plan& p, int m) {
  return m ? p.levels[m - 1].backward_size : 0;
}
inline __attribute__((always_inline)) long sums_size(const Plan& p, int m) { return m ? p.levels[m - 1].sums_size : 0; }

// One node's coefficients, and the matrix of the child, (m-1) x (m-1) each, for every component that the recursion moves
// to; the reference (forward) and a skipped spike (backward) keep the node's own matrix. That one has row length `stride`;
// only lower triangles are used.
void forward_node(const Plan& plan, int m, const double* Lam, int stride, double* node, double* children);
void backward_node(const Plan& plan, int m, const double* A, int stride, double* node, double* children);
// The tables of a whole subtree of m > 0 latents. `scratch` holds scratch_size(plan, m) numbers.
void build_forward(const Plan& plan, int m, const double* Lam, int stride, double* table, double* scratch);
void build_backward(const Plan& plan, int m, const double* A, int stride, double* table, double* scratch);
long scratch_size(const Plan& plan, int m);

// Components of the pivot that the backward recursion skips: 1 for a hard spike. The leaf block treats all its latents alike,
// so there it takes a hard spike in each of them.
inline __attribute__((always_inline)) int skipped(const Plan& p, int m) {
  return p.levels[m - 1].hard && (m > p.layout.leaf_latents || p.layout.hard);
}

}  // namespace spikeslab
