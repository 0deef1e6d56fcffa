#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dispatch.hpp"
#include "states.hpp"
#include "tree.hpp"
#include "truncated_model.hpp"

namespace nb = nanobind;

namespace spikeslab {
namespace {

using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, double>;

size_t product(const std::vector<size_t>& shape) {
  size_t size = 1;
  for (size_t extent : shape) size *= extent;
  return size;
}

Array owned(double* data, const std::vector<size_t>& shape) {
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<double*>(p); });
  return Array(data, shape.size(), shape.data(), owner);
}

Array zeros(std::vector<size_t> shape) { return owned(new double[product(shape)](), shape); }

// To be written completely.
Array blank(std::vector<size_t> shape) { return owned(new double[product(shape)], shape); }

Array copy(const std::vector<double>& values, std::vector<size_t> shape) {
  Array array = blank(shape);
  std::copy(values.begin(), values.end(), array.data());
  return array;
}

// ---- the tree and what it answers ----

void same_points(const Plan& plan, const Matrix& b, const Matrix& xhat) {
  if (b.shape(0) != xhat.shape(0) || b.shape(1) != xhat.shape(1) || b.shape(1) != static_cast<size_t>(plan.latents))
    throw std::invalid_argument("b and xhat must both be points x latents");
}

Sums sums_at(Array& sums, size_t part, double* outer, double* cross) {
  return {sums.data(), sums.data() + part, sums.data() + 2 * part, outer, cross};
}

Array evidence(const Tree& tree, const Matrix& b, const Matrix& xhat) {
  same_points(tree.plan(), b, xhat);
  Array log_ratio = blank({b.shape(0)});
  const Points points{static_cast<long>(b.shape(0)), b.data(), xhat.data(), nullptr, nullptr, log_ratio.data(), nullptr,
                      nullptr};
  nb::gil_scoped_release release;
  kernel().walk(tree.plan(), points, nullptr);
  return log_ratio;
}

nb::tuple moments(const Tree& tree, const Matrix& b, const Matrix& xhat, bool probabilities) {
  const Plan& plan = tree.plan();
  same_points(plan, b, xhat);
  const size_t count = b.shape(0), n = plan.latents, k = plan.components;
  Array log_ratio = blank({count}), mean = blank({count, n}), sums = zeros({3, n, k}), outer = zeros({n, n});
  Array probability = zeros({probabilities ? count : 0, n, k});
  const Points points{static_cast<long>(count), b.data(), xhat.data(), nullptr, nullptr, log_ratio.data(), mean.data(),
                      probabilities ? probability.data() : nullptr};
  const Sums out = sums_at(sums, n * k, outer.data(), nullptr);
  {
    nb::gil_scoped_release release;
    kernel().walk(plan, points, &out);
  }
  return nb::make_tuple(log_ratio, mean, probability, sums, outer);
}

Array second_moments(const Tree& tree, const Matrix& b, const Matrix& xhat) {
  const Plan& plan = tree.plan();
  same_points(plan, b, xhat);
  const size_t count = b.shape(0), n = plan.latents, k = plan.components;
  Array outer = zeros({count, n, n}), sums = zeros({3, n, k});
  nb::gil_scoped_release release;
  for (size_t i = 0; i < count; i++) {
    double log_ratio;
    const Points point{1, b.data() + i * n, xhat.data() + i * n, nullptr, nullptr, &log_ratio, nullptr, nullptr};
    const Sums out = sums_at(sums, n * k, outer.data() + i * n * n, nullptr);
    kernel().walk(plan, point, &out);
  }
  return outer;
}

// An observation model on top of a tree; it owns copies of its arrays.
class Observed {
 public:
  Observed(const Tree& tree, const Matrix& precise, const Matrix& gain, const Matrix& mixing, const Vector& offset,
           const Vector& precision, const Vector& b0, const Vector& xhat0)
      : tree_(tree) {
    const size_t features = mixing.shape(0), n = tree.plan().latents;
    const auto wide = [&](const Matrix& a) { return a.shape(0) == features && a.shape(1) == n; };
    if (!wide(precise) || !wide(gain) || !wide(mixing) || offset.shape(0) != features || precision.shape(0) != features ||
        b0.shape(0) != n || xhat0.shape(0) != n)
      throw std::invalid_argument("precise, gain and mixing must be features x latents, offset and precision have one value "
                                  "a feature, b0 and xhat0 one a latent");
    for (double variance : tree.reference_variance) reference_precision_.push_back(variance > 0 ? 1 / variance : 0);
    observation_ = {static_cast<long>(features), keep(precise), keep(gain), keep(mixing), keep(offset), keep(precision),
                    keep(b0), keep(xhat0), tree.reference_mean.data(), reference_precision_.data()};
  }

  Array evidence(const Matrix& y) const {
    check(y);
    Array log_density = blank({y.shape(0)});
    const Points points{static_cast<long>(y.shape(0)), nullptr, nullptr, &observation_, y.data(), log_density.data(), nullptr,
                        nullptr};
    nb::gil_scoped_release release;
    kernel().walk(tree_.plan(), points, nullptr);
    return log_density;
  }

  nb::tuple moments(const Matrix& y, bool each) const {
    check(y);
    const Plan& plan = tree_.plan();
    const size_t count = y.shape(0), n = plan.latents, k = plan.components;
    Array log_density = blank({count}), sums = zeros({3, n, k}), outer = zeros({n, n});
    Array cross = zeros({static_cast<size_t>(observation_.features), n});
    Array mean = blank({each ? count : 0, n}), probabilities = zeros({each ? count : 0, n, k});
    const Points points{static_cast<long>(count), nullptr, nullptr, &observation_, y.data(), log_density.data(),
                        each ? mean.data() : nullptr, each ? probabilities.data() : nullptr};
    const Sums out = sums_at(sums, n * k, outer.data(), cross.data());
    {
      nb::gil_scoped_release release;
      kernel().walk(plan, points, &out);
    }
    return nb::make_tuple(log_density, mean, probabilities, sums, outer, cross);
  }

  Array incomplete_evidence(const Matrix& y) const {
    check(y);
    Array log_density = blank({y.shape(0)});
    const IncompletePoints points{static_cast<long>(y.shape(0)), &observation_, y.data(), log_density.data(), nullptr, nullptr,
                                  nullptr};
    nb::gil_scoped_release release;
    kernel().walk_incomplete(tree_.plan(), points, nullptr);
    return log_density;
  }

  nb::tuple incomplete_moments(const Matrix& y, bool each) const {
    check(y);
    const Plan& plan = tree_.plan();
    const size_t count = y.shape(0), some = each ? count : 0, n = plan.latents, k = plan.components;
    const size_t features = observation_.features;
    Array log_density = blank({count}), mean = blank({some, n}), probabilities = zeros({some, n, k}), second = blank({some, n, n});
    Array sums = zeros({3, n, k}), outer = zeros({n, n}), cross = zeros({features, n});
    Array missing_mean = zeros({features, n}), missing_second = zeros({features, n, n});
    const IncompletePoints points{static_cast<long>(count), &observation_, y.data(), log_density.data(),
                                  each ? mean.data() : nullptr, each ? probabilities.data() : nullptr,
                                  each ? second.data() : nullptr};
    const IncompleteSums out{sums_at(sums, n * k, outer.data(), cross.data()), missing_mean.data(), missing_second.data()};
    {
      nb::gil_scoped_release release;
      kernel().walk_incomplete(plan, points, &out);
    }
    return nb::make_tuple(log_density, mean, probabilities, second, sums, outer, cross, missing_mean, missing_second);
  }

 private:
  const Tree& tree_;
  Observation observation_{};
  std::vector<double> reference_precision_;
  std::vector<std::vector<double>> kept_;

  template <class A>
  const double* keep(const A& array) {
    kept_.emplace_back(array.data(), array.data() + array.size());
    return kept_.back().data();
  }

  void check(const Matrix& y) const {
    if (y.shape(1) != static_cast<size_t>(observation_.features)) throw std::invalid_argument("y must be points x features");
  }
};

// Sums of the densities of several runs' sources, each run with its own unmixing matrix and densities of the same signals.
using Cube = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const double, nb::ndim<2>, nb::device::cpu>;

nb::tuple sum_densities(const Rows& signals, const Cube& unmixing, const Cube& weights, const Cube& means,
                        const Cube& variances) {
  const size_t runs = unmixing.shape(0), n = signals.shape(0), k = weights.shape(2);
  const auto same = [&](const Cube& a) { return a.shape(0) == runs && a.shape(1) == n && a.shape(2) == k; };
  if (unmixing.shape(1) != n || unmixing.shape(2) != n || !same(weights) || !same(means) || !same(variances))
    throw std::invalid_argument("unmixing must be runs x sources x sources; weights, means and variances runs x sources x "
                                "components, for signals of as many rows as there are sources");
  if (k == 0 || k > kMostDensityComponents)
    throw std::invalid_argument("a density has at least 1 and at most " + std::to_string(kMostDensityComponents) +
                                " components, got " + std::to_string(k));
  if (signals.shape(1) > 1 && signals.stride(1) != 1) throw std::invalid_argument("the rows of signals must be contiguous");
  Array log_density = blank({runs}), sums = blank({3, runs, n, k}), product = blank({runs, n, n}), curvature = blank({runs, n});
  const Signals x{static_cast<int>(n), static_cast<long>(signals.shape(1)), static_cast<long>(signals.stride(0)),
                  signals.data()};
  {
    nb::gil_scoped_release release;
    for (size_t r = 0; r < runs; r++) {
      const size_t at = r * n * k, all = runs * n * k;
      const Mixtures mixtures{static_cast<int>(k), unmixing.data() + r * n * n, weights.data() + at, means.data() + at,
                              variances.data() + at};
      kernel().sum_densities(x, mixtures,
                             {log_density.data() + r, sums.data() + at, sums.data() + all + at, sums.data() + 2 * all + at,
                              product.data() + r * n * n, curvature.data() + r * n});
    }
  }
  return nb::make_tuple(log_density, sums, product, curvature);
}

// ---- many latents ----

Truncated make_truncated(const Matrix& mixing, const Matrix& gram, const Matrix& log_odds, const Matrix& means,
                         const Matrix& variances, int free, int active, int moves) {
  const size_t n = mixing.shape(0), slabs = log_odds.shape(1);
  const auto same = [&](const Matrix& a) { return a.shape(0) == n && a.shape(1) == slabs; };
  if (n == 0 || slabs == 0 || gram.shape(0) != n || gram.shape(1) != n || !same(log_odds) || !same(means) || !same(variances))
    throw std::invalid_argument("mixing must be latents x features, gram latents x latents, and log_odds, means and variances "
                                "latents x slabs");
  const auto within = [](int value, int least, size_t most) { return value >= least && static_cast<size_t>(value) <= most; };
  if (!within(free, 1, std::min<size_t>(n, kMostFree)) || !within(active, 1, std::min<size_t>(n, kMostActive)) || moves < 0)
    throw std::invalid_argument("of " + std::to_string(n) + " latents at least 1 and at most " + std::to_string(kMostFree) +
                                " can be free and " + std::to_string(kMostActive) + " active, after 0 moves or more");
  return Truncated(static_cast<int>(n), static_cast<int>(mixing.shape(1)), static_cast<int>(slabs), mixing.data(), gram.data(),
                   log_odds.data(), means.data(), variances.data(), free, active, moves);
}

void check_points(const Truncated& truncated, const Matrix& y) {
  if (y.shape(1) != static_cast<size_t>(truncated.model().features))
    throw std::invalid_argument("y must be points x features");
}

Array truncated_evidence(const Truncated& truncated, const Matrix& y) {
  check_points(truncated, y);
  Array log_ratio = blank({y.shape(0)});
  TruncatedPoints points{};
  points.count = static_cast<long>(y.shape(0));
  points.y = y.data();
  points.log_ratio = log_ratio.data();
  nb::gil_scoped_release release;
  kernel().truncate(truncated.model(), points, nullptr, nullptr);
  return log_ratio;
}

nb::tuple truncated_moments(const Truncated& truncated, const Matrix& y, std::optional<Vector> weights, bool each) {
  check_points(truncated, y);
  const TruncatedModel& model = truncated.model();
  const size_t count = y.shape(0), n = model.latents, slabs = model.slabs;
  if (weights && weights->shape(0) != count) throw std::invalid_argument("there must be one weight for every row of y");
  Array log_ratio = blank({count}), sums = zeros({3, n, slabs}), outer = zeros({n, n});
  Array cross = zeros({n, static_cast<size_t>(model.padded_features)});
  Array missing = zeros({2, static_cast<size_t>(model.padded_features)});
  Array mean = blank({each ? count : 0, n}), probabilities = blank({each ? count : 0, n, slabs});
  TruncatedPoints points{};
  points.count = static_cast<long>(count);
  points.y = y.data();
  points.weights = weights ? weights->data() : nullptr;
  points.log_ratio = log_ratio.data();
  points.mean = each ? mean.data() : nullptr;
  points.probabilities = each ? probabilities.data() : nullptr;
  double* sum = sums.data();
  const TruncatedSums out{sum,          sum + n * slabs, sum + 2 * n * slabs, outer.data(),
                          cross.data(), missing.data(),  missing.data() + model.padded_features};
  {
    nb::gil_scoped_release release;
    kernel().truncate(model, points, &out, nullptr);
  }
  return nb::make_tuple(log_ratio, mean, probabilities, sums, outer, cross, missing);
}

nb::tuple truncated_prediction(const Truncated& truncated, const Matrix& y) {
  check_points(truncated, y);
  const size_t count = y.shape(0), features = y.shape(1);
  Array log_ratio = blank({count}), mean = blank({count, features}), variance = blank({count, features});
  TruncatedPoints points{};
  points.count = static_cast<long>(count);
  points.y = y.data();
  points.log_ratio = log_ratio.data();
  points.predicted = mean.data();
  points.uncertain = variance.data();
  {
    nb::gil_scoped_release release;
    kernel().truncate(truncated.model(), points, nullptr, nullptr);
  }
  return nb::make_tuple(mean, variance);
}

nb::tuple truncated_spread(const Truncated& truncated, const Matrix& y, const Matrix& form) {
  check_points(truncated, y);
  const size_t count = y.shape(0), n = truncated.model().latents;
  if (form.shape(0) != n || form.shape(1) != n) throw std::invalid_argument("form must be latents x latents");
  Array log_ratio = blank({count}), mean = blank({count, n}), spread = blank({count});
  TruncatedPoints points{};
  points.count = static_cast<long>(count);
  points.y = y.data();
  points.log_ratio = log_ratio.data();
  points.mean = mean.data();
  points.form = form.data();
  points.spread = spread.data();
  {
    nb::gil_scoped_release release;
    kernel().truncate(truncated.model(), points, nullptr, nullptr);
  }
  return nb::make_tuple(log_ratio, mean, spread);
}

nb::tuple truncated_states(const Truncated& truncated, const Matrix& y) {
  check_points(truncated, y);
  const size_t count = y.shape(0), n = truncated.model().latents, free = truncated.model().free;
  using Slabs = nb::ndarray<nb::numpy, signed char>;
  using Places = nb::ndarray<nb::numpy, int>;
  auto slab = std::make_unique<signed char[]>(count * n);
  auto places = std::make_unique<int[]>(count * free);
  TruncatedPoints points{};
  points.count = static_cast<long>(count);
  points.y = y.data();
  const TruncatedStates states{slab.get(), places.get()};
  {
    nb::gil_scoped_release release;
    kernel().truncate(truncated.model(), points, nullptr, &states);
  }
  nb::capsule slab_owner(slab.get(), [](void* p) noexcept { delete[] static_cast<signed char*>(p); });
  nb::capsule places_owner(places.get(), [](void* p) noexcept { delete[] static_cast<int*>(p); });
  return nb::make_tuple(Slabs(slab.release(), {count, n}, slab_owner), Places(places.release(), {count, free}, places_owner));
}

// ---- Gaussians with missing entries ----

Array gaussian_densities(const Matrix& y, const Cube& covariances, double noise) {
  const size_t count = y.shape(0), features = y.shape(1), classes = covariances.shape(0);
  if (covariances.shape(1) != features || covariances.shape(2) != features)
    throw std::invalid_argument("covariances must be classes x features x features");
  Array log_density = blank({count, classes});
  const GaussianPoints points{static_cast<long>(count), static_cast<int>(features), y.data(), noise};
  nb::gil_scoped_release release;
  kernel().gaussian_densities(points, static_cast<int>(classes), covariances.data(), log_density.data());
  return log_density;
}

nb::tuple gaussian_moments(const Matrix& y, const Matrix& covariance, double noise, std::optional<Vector> weights) {
  const size_t count = y.shape(0), features = y.shape(1), some = weights ? features : 0;
  if (covariance.shape(0) != features || covariance.shape(1) != features)
    throw std::invalid_argument("covariance must be features x features");
  if (weights && weights->shape(0) != count) throw std::invalid_argument("there must be one weight for every row of y");
  Array mean = blank({count, features}), variance = blank({count, features}), scatter = zeros({some, some});
  const GaussianPoints points{static_cast<long>(count), static_cast<int>(features), y.data(), noise};
  const GaussianMoments out{weights ? weights->data() : nullptr, mean.data(), variance.data(),
                            weights ? scatter.data() : nullptr};
  {
    nb::gil_scoped_release release;
    kernel().gaussian_expectations(points, covariance.data(), out);
  }
  return nb::make_tuple(mean, variance, scatter);
}

Array log2_state_weights(const Tree& tree, const Matrix& xhat) {
  const Plan& plan = tree.plan();
  if (xhat.shape(1) != static_cast<size_t>(plan.latents)) throw std::invalid_argument("xhat must be points x latents");
  Array weights = blank({xhat.shape(0), static_cast<size_t>(tree.states)});
  nb::gil_scoped_release release;
  state_weights(plan, static_cast<long>(xhat.shape(0)), xhat.data(), weights.data());
  return weights;
}

nb::list digits(const Tree& tree) {
  nb::list levels;
  for (int i = 0; i < tree.plan().latents; i++) {
    const Level& level = tree.plan().levels[i];
    nb::list components;
    for (int k = 0; k < level.count; k++) components.append(level.components[k].index);
    levels.append(nb::make_tuple(level.latent, components));
  }
  return levels;
}

}  // namespace

NB_MODULE(_core, m) {
  const char* wanted = std::getenv("SPIKESLAB_KERNEL");
  use(wanted ? wanted : "");
  m.def("available", &available, "Names of the kernels this CPU can run, the best first.");
  m.def("chosen", [] { return std::string(kernel().name); }, "Name of the kernel in use.");
  m.def("use", &use, nb::arg("name"), "Use another kernel; an empty name is the best one.");
  m.def("sum_densities", &sum_densities, nb::arg("signals"), nb::arg("unmixing"), nb::arg("weights"), nb::arg("means"),
        nb::arg("variances"));

  m.def("gaussian_densities", &gaussian_densities, nb::arg("y"), nb::arg("covariances"), nb::arg("noise"));
  m.def("gaussian_moments", &gaussian_moments, nb::arg("y"), nb::arg("covariance"), nb::arg("noise"),
        nb::arg("weights") = nb::none());

  nb::class_<Tree>(m, "Tree")
      .def("__init__",
           [](Tree* self, const Matrix& A, const Matrix& weights, const Matrix& means, const Matrix& variances) {
             const size_t n = weights.shape(0), k = weights.shape(1);
             const auto same = [&](const Matrix& a) { return a.shape(0) == n && a.shape(1) == k; };
             if (A.shape(0) != n || A.shape(1) != n || !same(means) || !same(variances) || n == 0 || k == 0)
               throw std::invalid_argument("A must be latents x latents; weights, means, variances latents x components");
             new (self) Tree(static_cast<int>(n), static_cast<int>(k), A.data(), weights.data(), means.data(),
                             variances.data());
           },
           nb::arg("A"), nb::arg("weights"), nb::arg("means"), nb::arg("variances"))
      .def_ro("states", &Tree::states)
      .def_ro("log_constant", &Tree::log_constant)
      .def("reference",
           [](const Tree& t) {
             const std::size_t n = t.reference_mean.size();
             return nb::make_tuple(copy(t.reference_mean, {n}), copy(t.reference_variance, {n}),
                                   copy(t.reference_covariance, {n, n}));
           })
      .def("digits", &digits)
      .def("evidence", &evidence, nb::arg("b"), nb::arg("xhat"))
      .def("moments", &moments, nb::arg("b"), nb::arg("xhat"), nb::arg("probabilities") = false)
      .def("second_moments", &second_moments, nb::arg("b"), nb::arg("xhat"))
      .def("log2_state_weights", &log2_state_weights, nb::arg("xhat"));

  nb::class_<Observed>(m, "Observed")
      .def(nb::init<const Tree&, const Matrix&, const Matrix&, const Matrix&, const Vector&, const Vector&, const Vector&,
                    const Vector&>(),
           nb::keep_alive<1, 2>(), nb::arg("tree"), nb::arg("precise"), nb::arg("gain"), nb::arg("mixing"),
           nb::arg("offset"), nb::arg("precision"), nb::arg("b0"), nb::arg("xhat0"))
      .def("evidence", &Observed::evidence, nb::arg("y"))
      .def("moments", &Observed::moments, nb::arg("y"), nb::arg("each") = false)
      .def("incomplete_evidence", &Observed::incomplete_evidence, nb::arg("y"))
      .def("incomplete_moments", &Observed::incomplete_moments, nb::arg("y"), nb::arg("each") = false);

  nb::class_<Truncated>(m, "Truncated")
      .def("__init__",
           [](Truncated* self, const Matrix& mixing, const Matrix& gram, const Matrix& log_odds, const Matrix& means,
              const Matrix& variances, int free, int active, int moves) {
             new (self) Truncated(make_truncated(mixing, gram, log_odds, means, variances, free, active, moves));
           },
           nb::arg("mixing"), nb::arg("gram"), nb::arg("log_odds"), nb::arg("means"), nb::arg("variances"), nb::arg("free"),
           nb::arg("active"), nb::arg("moves"))
      .def("evidence", &truncated_evidence, nb::arg("y"))
      .def("moments", &truncated_moments, nb::arg("y"), nb::arg("weights") = nb::none(), nb::arg("each") = false)
      .def("predict", &truncated_prediction, nb::arg("y"))
      .def("mean_and_spread", &truncated_spread, nb::arg("y"), nb::arg("form"))
      .def("states", &truncated_states, nb::arg("y"));
}

}  // namespace spikeslab
