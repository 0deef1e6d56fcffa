// Truncated inference for many latents: for every point a cube of states, and the closed form inside it.
//
// Here the noise has unit variance, a latent is exactly zero or in one of its slabs, and log odds are those of a slab against
// zero: TruncatedInference brings every model into this form. With A = W'W and b = W'y a set of slabs that are on has the
// weight  prod odds * integral of prod N(x_h; m_h, v_h) exp(b'x - x'Ax/2)  relative to all latents being zero. Turning one
// more latent on changes, with a = A_jj and b = b_j given what is on,
//     q = 1 + v a,   s = (b - a m) / q,   t = m + v s
//     log weight += log odds - log(q) / 2 + (b t + m s) / 2
//     b_i -= A_ij t,   A_ik -= A_ij A_jk v / q
// For each point
//   1. a search in single precision climbs to a set that no addition, removal, exchange of two latents or change of slab
//      improves (greedy first, then at most `moves` best moves), and scores each latent by the best move that involves it;
//   2. the `free` latents with the best scores may be anything, all others stay as they are in that set: a cube of states;
//   3. in double precision the latents that stay on are integrated out, then the elimination tree of the free ones is walked
//      once, with the point's own part of A, one point a lane. Moments come back on the way up: with P and E, S the mass and
//      the moments of the others, and g = A_hj / q,
//          G_h = s P - sum_j g_j E_j                     E_h = m P + v G_h
//          c_j = s E_j - sum_k g_k S_jk                  S_hj = m E_j + v c_j
//          R_h = s G_h - sum_j g_j c_j - (A_hh / q) P    S_hh = m^2 P + 2 m v G_h + v^2 R_h + v P
//      G and R, the slopes of the log weight in m and (twice) in v, are what the moments of each slab follow from, whatever
//      its variance is;
//   4. the moments of the few latents involved are added to the sums.
// Single precision decides only which states count. The sum over them is exact, and never above the sum over all.
//
// NaN is a missing entry. A point that has some sees its own A, that of the rows of W that it observes, of which only what the
// latents involved need is computed. A missing entry is w'x + e given x, w being its row of W, so that sums over the points take
//     <y x_h> = sum_k w_k <x_k x_h>        <y> = w'<x>        <y^2> = <y>^2 + w' cov(x) w + 1
// in its place.
#pragma once

namespace spikeslab {

constexpr int kMostFree = 20;
constexpr int kMostActive = 64;

struct TruncatedModel {
  int latents, features, slabs;
  int padded_latents, padded_features;  // row lengths, multiples of a vector; padding is zero
  bool plain;                           // one slab, N(0, 1)
  const double* mixing;                 // latents x padded_features
  const double* gram;                   // latents x latents
  const double *log2_odds, *means, *variances;  // latents x slabs
  const float* mixing32;                        // features x padded_latents
  const float* gram32;                          // latents x padded_latents
  const float* power32;                         // padded_latents: the diagonal
  const float *log2_odds32, *means32, *variances32;  // slabs x padded_latents; odds of padding are kNever32
  int free, active, moves;  // latents that are free, most that are on in the best set, most moves
};

constexpr float kNever32 = -1e30f;

struct TruncatedPoints {
  long count;
  const double* y;        // count x features, NaN where missing
  const double* weights;  // count, or null: how often each point counts in the sums
  double* log_ratio;      // count: log of the evidence over that of all latents being zero
  double* mean;           // count x latents, or null
  double* probabilities;  // count x latents x slabs, or null
  const double* form;     // latents x latents, or null: its trace with the covariance of each point is
  double* spread;         // count
  double* predicted;      // count x features, or null: W x, its mean
  double* uncertain;      // the same: its variance
};

struct TruncatedSums {  // over the points, added to what is there
  double *counts, *slopes, *bends;  // latents x slabs: the probability, G and R
  double* outer;                    // latents x latents, lower triangle
  double* cross;                    // latents x padded_features: <x y'>
  double *missing, *squares;        // padded_features: <y> and <y^2> where it is missing
};

// The states themselves: the slab of every latent in the best set (1 the first, 0 zero), count x latents, and the free latents
// in rising order, count x free.
struct TruncatedStates {
  signed char* slab;
  int* free;
};

using Truncate = void(const TruncatedModel&, const TruncatedPoints&, const TruncatedSums*, const TruncatedStates*);

namespace x86_64_v4 { Truncate truncate; }
namespace x86_64_v3 { Truncate truncate; }
namespace baseline { Truncate truncate; }

}  // namespace spikeslab
