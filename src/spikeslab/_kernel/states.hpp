// The weights of all states one by one, for queries that need them: probable supports, samples from the posterior.
#pragma once
#include "plan.hpp"

namespace spikeslab {

// log2 weights relative to the reference state, points x states. The first level is the fastest digit of a state's number,
// the order of a level's components counts its values.
void state_weights(const Plan& plan, long points, const double* xhat, double* log2_weights);

}  // namespace spikeslab
