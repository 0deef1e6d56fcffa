// The walk over the elimination tree for points with missing entries (NaN). Each point has its own A, that of its observed entries,
// so that nothing can be tabulated: the matrices go down the tree with the points, a vector of points at a time, and both
// recursions of plan.hpp are one walk. Every point may miss other entries at no extra cost.
#pragma once
#include "walk.hpp"

namespace spikeslab {

struct IncompletePoints {
  long count;
  const Observation* observation;  // its gain and xhat0 are not used
  const double* y;                 // count x features
  double* log_density;             // count: of the observed entries
  double* mean;                    // count x latents, or null
  double* probabilities;           // count x latents x components, or null
  double* second;                  // count x latents x latents: <xx'>, or null
};

struct IncompleteSums {  // over the points, added to what is there, or null for the evidence alone
  Sums sums;               // cross is that of the observed entries
  double* missing_mean;    // features x latents: <x> of the points that miss the feature
  double* missing_second;  // features x latents x latents: <xx'> of these
};

using WalkIncomplete = void(const Plan&, const IncompletePoints&, const IncompleteSums*);

namespace x86_64_v4 { WalkIncomplete walk_incomplete; }
namespace x86_64_v3 { WalkIncomplete walk_incomplete; }
namespace baseline { WalkIncomplete walk_incomplete; }

}  // namespace spikeslab
