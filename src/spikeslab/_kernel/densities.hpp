// Sources u = B x of many points at once, their one-dimensional mixture densities, and the sums that maximum likelihood of B and
// of the densities needs. One implementation per instruction set.
#pragma once

namespace spikeslab {

constexpr int kMostDensityComponents = 8;

struct Signals {
  int count;             // as many as there are sources
  long points, stride;   // signal j of point i is at[j * stride + i]
  const double* at;
};

struct Mixtures {
  int components;
  const double* unmixing;                   // B, sources x signals
  const double *weights, *means, *variances;  // sources x components
};

struct DensitySums {  // over the points
  double* log_density;              // of sum_h log p_h(u_h)
  double *counts, *first, *second;  // sources x components: of the responsibility r, r u and r u^2
  double* score_product;            // sources x sources: of psi_i u_j with psi = -d log p / du
  double* curvature;                // sources: of d psi / du
};

using SumDensities = void(const Signals&, const Mixtures&, const DensitySums&);

namespace x86_64_v4 { SumDensities sum_densities; }
namespace x86_64_v3 { SumDensities sum_densities; }
namespace baseline { SumDensities sum_densities; }

}  // namespace spikeslab
