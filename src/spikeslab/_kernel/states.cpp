#include "states.hpp"

#include <cstddef>
#include <vector>

namespace spikeslab {
namespace {

struct Walk {
  const Plan& plan;
  const long points, states;
  double* out;

  // Lam: rows `row` apart; x: m x points; w: points. The recursion follows the forward pass of plan.hpp.
  void visit(int m, const double* Lam, int row, const double* x, const double* w, long state) const {
    if (m == 0) {
      for (long i = 0; i < points; i++) out[i * states + state] = w[i];
      return;
    }
    const Level& level = plan.levels[m - 1];
    const int last = level.count - 1, stride = plan.layout.means ? 4 : 2;
    const long block = static_cast<long>(m - 1) * (m - 1), below = leaves(plan, m - 1);
    std::vector<double> node(m - 1 + last * stride), children(last * block), x1((m - 1) * points), w1(points);
    forward_node(plan, m, Lam, row, node.data(), children.data());
    const double* pivot = x + (m - 1) * points;
    for (int k = 0; k < last; k++) {
      const double* c = node.data() + m - 1 + k * stride;
      const double mean = plan.layout.means ? c[2] : 0, alpha = plan.layout.means ? c[3] : 0;
      for (long i = 0; i < points; i++) {
        const double delta = pivot[i] - mean, t = c[1] * delta - alpha;
        w1[i] = w[i] + c[0] - delta * (t - alpha);
        for (int j = 0; j < m - 1; j++) x1[j * points + i] = x[j * points + i] - node[j] * t;
      }
      visit(m - 1, children.data() + k * block, m - 1, x1.data(), w1.data(), state + k * below);
    }
    visit(m - 1, Lam, row, x, w, state + last * below);
  }
};

}  // namespace

void state_weights(const Plan& plan, long points, const double* xhat, double* log2_weights) {
  const int n = plan.latents;
  std::vector<double> x(static_cast<std::size_t>(n) * points), w(points);
  for (int j = 0; j < n; j++)
    for (long i = 0; i < points; i++) x[j * points + i] = kUnit * xhat[i * n + plan.levels[j].latent];
  Walk{plan, points, leaves(plan, n), log2_weights}.visit(n, plan.Lam, n, x.data(), w.data(), 0);
}

}  // namespace spikeslab
