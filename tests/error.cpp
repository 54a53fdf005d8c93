// Bad input: an error that names value, limit and remedy, with outputs and layer as they were.
#include <functional>
#include <limits>

#include <lrmoe/error.hpp>

#include "layer_harness.hpp"

using namespace layer_test;
using fixture::names;
using fixture::refusal;

namespace {

using softmax_policies = policies_of<lrmoe::softmax_top_k>;
using given_policies = policies_of<lrmoe::given_routing>;

softmax_policies default_policies() {
  softmax_policies policies;
  policies.router.renormalise = true;
  policies.estimator = lrmoe::pps{1};
  return policies;
}

constexpr oracle::extents shape{10, 6, 5, 4, 2, 3};

problem a_problem(routing_kind kind = routing_kind::softmax_renormalised) {
  fixture::random draw(17);
  return random_problem(draw, shape, oracle::format::binary32, kind);
}

using arguments = call<float>;

/// What a call of forward or backward is handed: views that a test may replace.
struct forward_views {
  lrmoe::matrix_view<const float, device> x;
  lrmoe::router_logits<float, device> input;
  lrmoe::expert_weights<float, device> weights;
  lrmoe::matrix_view<float, device> out;
};
struct backward_views {
  lrmoe::matrix_view<const float, device> d_out;
  lrmoe::expert_weights<float, device> weights;
  lrmoe::matrix_view<float, device> dx, d_logits;
  lrmoe::expert_gradients<float, device> gradients;
};

class bench {
 public:
  bench()
      : p(a_problem()),
        views(p),
        pristine(views.bits()),
        layer(context, shape_of(shape), default_policies()) {}

  forward_views forward_arguments() const {
    return {views.x_view(), views.router_input<lrmoe::softmax_top_k>(), views.weights(),
            views.out_view()};
  }
  backward_views backward_arguments() const {
    return {views.d_out_view(), views.weights(), views.dx_view(),
            views.router_gradient<lrmoe::softmax_top_k>(), views.gradients()};
  }

  /// Message of forward with these views; afterwards nothing may have changed, and valid calls give
  /// the results of a fresh layer.
  std::string forward_refusal(const std::function<void(forward_views&)>& damage) {
    const arguments earlier(p);
    forward(layer, 0, earlier);  // a forward that the failed one must replace
    forward_views with = forward_arguments();
    damage(with);
    const std::string message =
        refusal([&] { layer.forward(0, with.x, with.input, with.weights, with.out); });
    CHECK(views.bits() == pristine);
    // The failed forward leaves nothing to go back from.
    CHECK_THROWS_AS(backward(layer, views), lrmoe::error);
    CHECK(views.bits() == pristine);
    check_still_works();
    return message;
  }

  std::string backward_refusal(const std::function<void(backward_views&)>& damage) {
    forward(layer, 0, views);
    const auto before = views.bits();
    backward_views with = backward_arguments();
    damage(with);
    const std::string message = refusal(
        [&] { layer.backward(with.d_out, with.weights, with.dx, with.d_logits, with.gradients); });
    CHECK(views.bits() == before);
    // The forward is still there to go back from.
    const arguments fresh(p);
    CHECK_NOTHROW(layer.backward(views.d_out_view(), views.weights(), fresh.dx_view(),
                                 fresh.router_gradient<lrmoe::softmax_top_k>(), fresh.gradients()));
    auto got = fresh.bits();
    got[0] = views.out.bits();
    CHECK(got == expected());
    views.out.poison();
    return message;
  }

  void check_still_works() {
    const arguments fresh(p);
    forward(layer, 0, fresh);
    backward(layer, fresh);
    CHECK(fresh.bits() == expected());
  }

  const std::vector<fixture::byte_string>& expected() {
    if (expected_.empty()) {
      lrmoe::context<backend> other;
      layer_of<softmax_policies, float> undisturbed(other, shape_of(shape), default_policies());
      const arguments fresh(p);
      forward(undisturbed, 0, fresh);
      backward(undisturbed, fresh);
      expected_ = fresh.bits();
    }
    return expected_;
  }

  problem p;
  arguments views;
  array<float> spare{1000};  // for views of other extents
  std::vector<fixture::byte_string> pristine;
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> layer;

 private:
  std::vector<fixture::byte_string> expected_;
};

}  // namespace

TEST_CASE("require builds its message from its parts only when the condition fails", "[error]") {
  CHECK_NOTHROW(lrmoe::require(true, "never seen"));
  CHECK(refusal([] { lrmoe::require(false, "limit ", 3, " of ", 2.5); }) ==
        "lrmoe: limit 3 of 2.5");
  try {
    lrmoe::require(false, "x");
  } catch (const lrmoe::error&) {
    SUCCEED("an argument_error is an lrmoe::error");
  }
}

TEST_CASE("a layer shape out of range names extent and limit", "[error]") {
  lrmoe::context<backend> context;
  const auto message = [&](const lrmoe::layer_shape& s) {
    return refusal(
        [&] { layer_of<softmax_policies, float> layer(context, s, default_policies()); });
  };
  CHECK(message({6, 5, 4, 2, 0}).empty());
  CHECK(names(message({0, 5, 4, 2, 0}), {"D = 0", "at least 1"}));
  CHECK(names(message({6, -1, 4, 2, 0}), {"F = -1", "at least 1"}));
  CHECK(names(message({6, 5, 0, 2, 0}), {"E = 0", "[1, "}));
  CHECK(names(message({6, 5, std::int64_t{1} << 40, 2, 0}), {"E = 1099511627776"}));
  CHECK(names(message({6, 5, 4, 0, 0}), {"K = 0", "[1, E = 4]"}));
  CHECK(names(message({6, 5, 4, 5, 0}), {"K = 5", "[1, E = 4]", "cannot choose an expert twice"}));
  CHECK(names(message({6, 5, 4, 2, -3}), {"F_shared = -3", "use 0"}));
  CHECK(names(refusal([&] {
                layer_of<softmax_policies, float> layer(context, {6, 5, 4, 2, 0},
                                                        default_policies(), 65536);
              }),
              {"layer_id = 65536", "below 65536"}));
  CHECK(context.memory.allocations() == 0);
}

TEST_CASE("a kept fraction outside (0, 1] is refused when the layer is made and when it is changed",
          "[error]") {
  for (const double keep : {0.0, -1.0, 1.5, std::nan("")}) {
    INFO("keep " << keep);
    softmax_policies policies = default_policies();
    policies.quota.keep = keep;
    lrmoe::context<backend> context;
    CHECK(names(refusal([&] {
                  layer_of<softmax_policies, float> layer(context, shape_of(shape), policies);
                }),
                {"keep = ", "(0, 1]"}));
    bench b;
    b.layer.policies().quota.keep = keep;
    CHECK(names(refusal([&] { forward(b.layer, 0, b.views); }), {"keep = ", "(0, 1]"}));
    CHECK(b.views.bits() == b.pristine);
    b.layer.policies().quota.keep = 0.5;
    b.check_still_works();
  }
}

TEST_CASE("wrong extents in forward name the view and both extents", "[error]") {
  bench b;
  const auto matrix = [&](integer rows, integer columns) { return b.spare.matrix(rows, columns); };
  const auto tensor = [&](integer planes, integer rows, integer columns) {
    return b.spare.tensor(planes, rows, columns);
  };
  const auto refused = [&](const std::function<void(forward_views&)>& damage,
                           std::initializer_list<std::string> parts) {
    CHECK(names(b.forward_refusal(damage), parts));
  };
  refused([&](auto& v) { v.x = matrix(10, 7); }, {"x is 10 x 7, expected 10 x 6"});
  refused([&](auto& v) { v.x = matrix(9, 6); }, {"out is 10 x 6, expected 9 x 6"});
  refused([&](auto& v) { v.out = matrix(10, 5); }, {"out is 10 x 5, expected 10 x 6"});
  refused([&](auto& v) { v.out = {}; }, {"out is 0 x 0, expected 10 x 6"});
  refused([&](auto& v) { v.input.logits = matrix(10, 3); }, {"logits is 10 x 3, expected 10 x 4"});
  refused([&](auto& v) { v.input.logits = matrix(11, 4); }, {"logits is 11 x 4, expected 10 x 4"});
  refused([&](auto& v) { v.weights.gate_up = tensor(4, 6, 5); },
          {"gate_up weights is 4 x 6 x 5, expected 4 x 6 x 10"});
  refused([&](auto& v) { v.weights.gate_up = tensor(3, 6, 10); },
          {"gate_up weights is 3 x 6 x 10, expected 4 x 6 x 10"});
  refused([&](auto& v) { v.weights.down = tensor(4, 6, 5); },
          {"down weights is 4 x 6 x 5, expected 4 x 5 x 6"});
  refused([&](auto& v) { v.weights.shared_gate_up = {}; },
          {"shared gate_up weights is 0 x 0 x 0, expected 1 x 6 x 6"});
  refused([&](auto& v) { v.weights.shared_down = tensor(1, 6, 3); },
          {"shared down weights is 1 x 6 x 3, expected 1 x 3 x 6"});
}

TEST_CASE("wrong extents in backward name the view and both extents", "[error]") {
  bench b;
  const auto matrix = [&](integer rows, integer columns) { return b.spare.matrix(rows, columns); };
  const auto tensor = [&](integer planes, integer rows, integer columns) {
    return b.spare.tensor(planes, rows, columns);
  };
  const auto refused = [&](const std::function<void(backward_views&)>& damage,
                           std::initializer_list<std::string> parts) {
    CHECK(names(b.backward_refusal(damage), parts));
  };
  refused([&](auto& v) { v.d_out = matrix(9, 6); }, {"d_out is 9 x 6, expected 10 x 6"});
  refused([&](auto& v) { v.dx = matrix(10, 4); }, {"dx is 10 x 4, expected 10 x 6"});
  refused([&](auto& v) { v.d_logits = matrix(10, 2); }, {"d_input is 10 x 2, expected 10 x 4"});
  refused([&](auto& v) { v.weights.down = tensor(4, 5, 5); },
          {"down weights is 4 x 5 x 5, expected 4 x 5 x 6"});
  refused([&](auto& v) { v.gradients.gate_up = tensor(4, 6, 9); },
          {"gate_up gradient is 4 x 6 x 9, expected 4 x 6 x 10"});
  refused([&](auto& v) { v.gradients.down = tensor(2, 5, 6); },
          {"down gradient is 2 x 5 x 6, expected 4 x 5 x 6"});
  refused([&](auto& v) { v.gradients.shared_gate_up = tensor(1, 6, 3); },
          {"shared gate_up gradient is 1 x 6 x 3, expected 1 x 6 x 6"});
  refused([&](auto& v) { v.gradients.shared_down = tensor(1, 3, 5); },
          {"shared down gradient is 1 x 3 x 5, expected 1 x 3 x 6"});
}

TEST_CASE("an output of forward that overlaps an input is refused, by one element too", "[error]") {
  bench b;
  const auto at = [](auto view, std::ptrdiff_t offset) {
    return lrmoe::matrix_view<float, device>(const_cast<float*>(view.data()) + offset, 10, 6);
  };
  const auto refused = [&](const std::function<void(forward_views&)>& damage,
                           std::initializer_list<std::string> parts) {
    CHECK(names(b.forward_refusal(damage), parts));
  };
  refused([&](auto& v) { v.out = at(v.x, 0); }, {"out overlaps x", "storage of its own"});
  refused([&](auto& v) { v.out = at(v.x, 59); }, {"out overlaps x"});
  refused([&](auto& v) { v.out = at(v.x, -59); }, {"out overlaps x"});
  refused([&](auto& v) { v.out = at(v.weights.gate_up, 7); }, {"out overlaps gate_up weights"});
  refused([&](auto& v) { v.out = at(v.weights.down, 7); }, {"out overlaps down weights"});
  refused([&](auto& v) { v.out = at(v.weights.shared_gate_up, 35); },
          {"out overlaps shared gate_up weights"});
  refused([&](auto& v) { v.out = at(v.weights.shared_down, -3); },
          {"out overlaps shared down weights"});
  refused([&](auto& v) { v.out = at(v.input.logits, 0); }, {"out overlaps logits"});
  // Neighbours in one allocation are fine.
  const array<float> both(120);
  std::copy_n(b.views.x.data(), 60, both.data());
  CHECK(refusal([&] {
          b.layer.forward(0, lrmoe::matrix_view<float, device>(both.data(), 10, 6),
                          b.views.router_input<lrmoe::softmax_top_k>(), b.views.weights(),
                          lrmoe::matrix_view<float, device>(both.data() + 60, 10, 6));
        }).empty());
}

TEST_CASE("an output of backward that overlaps an input or another output is refused", "[error]") {
  bench b;
  const auto matrix = [](const auto& view, integer rows, integer columns) {
    return lrmoe::matrix_view<float, device>(const_cast<float*>(view.data()),
                                             static_cast<std::size_t>(rows),
                                             static_cast<std::size_t>(columns));
  };
  const auto tensor = [](const auto& view, integer planes, integer rows, integer columns) {
    return lrmoe::tensor_view<float, device>(
        const_cast<float*>(view.data()), static_cast<std::size_t>(planes),
        static_cast<std::size_t>(rows), static_cast<std::size_t>(columns));
  };
  const auto refused = [&](const std::function<void(backward_views&)>& damage,
                           std::initializer_list<std::string> parts) {
    CHECK(names(b.backward_refusal(damage), parts));
  };
  const auto x = b.views.x_view();
  const auto logits = b.views.logits.matrix(10, 4);
  refused([&](auto& v) { v.dx = matrix(v.d_out, 10, 6); }, {"dx overlaps d_out"});
  refused([&](auto& v) { v.dx = matrix(x, 10, 6); }, {"dx overlaps x"});
  refused([&](auto& v) { v.dx = matrix(v.weights.down, 10, 6); }, {"dx overlaps down weights"});
  refused([&](auto& v) { v.dx = matrix(logits, 10, 6); }, {"dx overlaps logits"});
  refused([&](auto& v) { v.d_logits = matrix(logits, 10, 4); }, {"d_input overlaps logits"});
  refused([&](auto& v) { v.d_logits = matrix(v.d_out, 10, 4); }, {"d_input overlaps d_out"});
  refused([&](auto& v) { v.d_logits = matrix(v.dx, 10, 4); }, {"d_input overlaps dx"});
  refused([&](auto& v) { v.gradients.gate_up = tensor(v.weights.gate_up, 4, 6, 10); },
          {"gate_up gradient overlaps gate_up weights"});
  refused([&](auto& v) { v.gradients.down = tensor(v.gradients.gate_up, 4, 5, 6); },
          {"down gradient overlaps gate_up gradient"});
  refused([&](auto& v) { v.gradients.shared_down = tensor(v.dx, 1, 3, 6); },
          {"shared down gradient overlaps dx"});
  refused([&](auto& v) { v.gradients.shared_gate_up = tensor(v.d_logits, 1, 6, 6); },
          {"shared gate_up gradient overlaps d_input"});
}

TEST_CASE("logits that are not finite are refused by token before anything is computed",
          "[error]") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    bench b;
    array<float> logits(b.p.logits);
    logits.data()[4 * 7 + 2] = static_cast<float>(bad);
    CHECK(names(b.forward_refusal([&](auto& v) { v.input.logits = logits.matrix(10, 4); }),
                {"token 7", "not finite", "logits"}));
  }
}

TEST_CASE("bad given routing is refused with token and pair, and the layer stays usable",
          "[error]") {
  const problem good = a_problem(routing_kind::given);
  lrmoe::context<backend> context;
  given_policies policies;
  policies.estimator = lrmoe::pps{1};
  layer_of<given_policies, float> layer(context, shape_of(shape), policies);
  const auto results = [&](layer_of<given_policies, float>& of) {
    const arguments views(good);
    forward(of, 0, views);
    backward(of, views);
    return views.bits();
  };
  const auto expected = results(layer);
  const auto refused = [&](const std::function<void(problem&)>& damage,
                           std::initializer_list<std::string> parts) {
    problem bad = good;
    damage(bad);
    const arguments views(bad);
    const auto before = views.bits();
    CHECK(names(refusal([&] { forward(layer, 0, views); }), parts));
    CHECK(views.bits() == before);
    CHECK(results(layer) == expected);
  };
  refused([](problem& p) { p.in.experts[13] = 4; },
          {"expert id 4", "token 6, pair 1", "E = 4", "pass a valid id"});
  refused([](problem& p) { p.in.experts[12] = -2; }, {"expert id -2", "token 6, pair 0"});
  refused([](problem& p) { p.in.experts[5] = p.in.experts[4]; },
          {"more than once in token 2", "distinct"});
  refused([](problem& p) { p.in.weights[9].value = std::nan(""); },
          {"token 4, pair 1", "not finite"});
  refused([](problem& p) { p.in.weights[0].value = std::numeric_limits<double>::infinity(); },
          {"weight inf of token 0, pair 0", "not finite"});

  const arguments views(good);
  const array<index_type> experts(9 * 2);
  CHECK(names(refusal([&] {
                layer.forward(0, views.x_view(),
                              {experts.matrix(9, 2), views.given_weights.matrix(10, 2)},
                              views.weights(), views.out_view());
              }),
              {"experts is 9 x 2, expected 10 x 2"}));
}

TEST_CASE("more pairs than an index can count are refused before any view is read", "[error]") {
  lrmoe::context<backend> context;
  softmax_policies policies = default_policies();
  layer_of<softmax_policies, float> layer(context, {1, 1, 4, 4, 0}, policies);
  // The view claims rows that do not exist: only its extent may be looked at.
  float nothing = 0.0f;
  const std::size_t T = std::size_t{1} << 29;
  const lrmoe::matrix_view<const float, device> x(&nothing, T, 1);
  const lrmoe::matrix_view<float, device> out(&nothing, T, 1);
  CHECK(names(refusal([&] { layer.forward(0, x, lrmoe::router_logits<float, device>{}, {}, out); }),
              {"T = 536870912", "K = 4", "2^31 - 1", "split the batch"}));
}
