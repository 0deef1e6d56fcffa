// Gaussians with missing entries (NaN): points y = z + e with z ~ N(0, C) and white noise e, of which every point has other entries.
// With o the observed ones, Sigma = C + noise I, and L the Cholesky factor of Sigma_oo,
//     u = L^-1 y_o      log p(y_o) = -(n log 2 pi + u'u) / 2 - log|L|
//     B = L^-1 C_o:     <z> = B'u       cov(z) = C - B'B
// A vector of points at a time, one a lane, each with a matrix of its own; the smaller ones are filled up with the identity. So
// neighbours should have about as many entries; those that have the same ones share a factor.
#pragma once

namespace spikeslab {

struct GaussianPoints {
  long count;
  int features;
  const double* y;  // count x features
  double noise;
};

struct GaussianMoments {  // of points of one class
  const double* weights;    // count, or null without scatter
  double *mean, *variance;  // count x features: of z
  double* scatter;          // features x features, or null: sum of weight <zz'>, lower triangle, added to what is there
};

// covariances: classes x features x features; log_density: count x classes.
using GaussianDensities = void(const GaussianPoints&, int classes, const double* covariances, double* log_density);
using GaussianExpectations = void(const GaussianPoints&, const double* covariance, const GaussianMoments&);

namespace x86_64_v4 { GaussianDensities gaussian_densities; GaussianExpectations gaussian_expectations; }
namespace x86_64_v3 { GaussianDensities gaussian_densities; GaussianExpectations gaussian_expectations; }
namespace baseline { GaussianDensities gaussian_densities; GaussianExpectations gaussian_expectations; }

}  // namespace spikeslab
