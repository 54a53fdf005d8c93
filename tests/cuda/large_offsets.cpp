// Rows and weights whose elements lie beyond 2^31 give the bits of rows and weights that do not.
#include <lrmoe/compaction/combine.hpp>

#include "layer_harness.hpp"

using namespace layer_test;

namespace {

using bf16 = lrmoe::bfloat16;
constexpr integer beyond = (integer{1} << 31) + 1000;

/// Device memory that is not filled but for a piece.
template <class T>
class large_array {
 public:
  explicit large_array(integer size)
      : storage_(Kokkos::view_alloc("lrmoe_test::large", Kokkos::WithoutInitializing),
                 static_cast<std::size_t>(size)) {}

  void put(integer first, const std::vector<double>& values) const {
    const array<T> piece(values);
    Kokkos::deep_copy(part(first, std::ssize(values)), piece.vector());
  }
  void clear(integer first, integer size) const { Kokkos::deep_copy(part(first, size), T(0)); }
  fixture::byte_string bits(integer first, integer size) const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), part(first, size));
    return {host.data(), host.extent(0)};
  }
  lrmoe::matrix_view<T, device> matrix(integer rows, integer columns) const {
    return lrmoe::matrix_view<T, device>(storage_.data(), static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }
  lrmoe::tensor_view<T, device> tensor(integer planes, integer rows, integer columns) const {
    return lrmoe::tensor_view<T, device>(storage_.data(), static_cast<std::size_t>(planes),
                                         static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }

 private:
  lrmoe::vector_view<T, device> part(integer first, integer size) const {
    return lrmoe::vector_view<T, device>(storage_.data() + first, static_cast<std::size_t>(size));
  }
  Kokkos::View<T*, device> storage_;
};

}  // namespace

TEST_CASE("rows beyond 2^31 elements are computed as the first ones are", "[experts]") {
  fixture::random draw(5);
  constexpr integer D = 512, F = 256, M = 20;
  const auto x_values = draw.normal(M * D, 1.0, oracle::format::bfloat16);
  const auto d_out_values = draw.normal(M * D, 1.0, oracle::format::bfloat16);
  const array<bf16> gate_up(draw.normal(2 * D * 2 * F, 0.05, oracle::format::bfloat16));
  const array<bf16> down(draw.normal(2 * F * D, 0.05, oracle::format::bfloat16));
  const lrmoe::tensor_view<const bf16, device> gate_up_view(gate_up.tensor(2, D, 2 * F));
  const lrmoe::tensor_view<const bf16, device> down_view(down.tensor(2, F, D));

  const auto run = [&](integer first, bool gathered) {
    const integer rows = first + M;
    const large_array<bf16> x(rows * D), d_out(rows * D), pre(rows * 2 * F), h(rows * F),
        y(rows * D), d_pre(rows * 2 * F), scaled_h(rows * F), dx(rows * D);
    x.put(first * D, x_values);
    d_out.put(first * D, d_out_values);
    const auto at = static_cast<index_type>(first);
    const std::vector<index_type> host_offsets{at, at + 7, at + 20};
    const array<index_type> offsets(host_offsets);
    const lrmoe::row_groups<device> groups{offsets.vector(), host_offsets};
    std::vector<index_type> places(static_cast<std::size_t>(rows), 0);
    for (integer i = first; i < rows; ++i)
      places[static_cast<std::size_t>(i)] = static_cast<index_type>(i);
    const array<index_type> index(gathered ? places : std::vector<index_type>{});
    const lrmoe::vector_view<const index_type, device> index_view(index.vector());
    const array<float> d_gate_up(std::vector<double>(2 * D * 2 * F, 0.0)),
        d_down(std::vector<double>(2 * F * D, 0.0)), norms(rows);

    lrmoe::ledger account;
    lrmoe::workspace<device> scratch(account);
    backend::expert_operations on(scratch);
    const space_type space;
    using rows_of = lrmoe::gathered_rows<bf16, device>;
    on.gate_up(space, rows_of{x.matrix(rows, D), index_view}, groups, gate_up_view,
               pre.matrix(rows, 2 * F), h.matrix(rows, F), norms.vector());
    on.down(space, rows_of{h.matrix(rows, F)}, groups, down_view, y.matrix(rows, D));
    lrmoe::swiglu_kept_rows<bf16, device> kept;
    kept.x = {x.matrix(rows, D), index_view};
    kept.pre = {pre.matrix(rows, 2 * F), index_view};
    kept.d_out = {d_out.matrix(rows, D), index_view};
    kept.groups = groups;
    on.down_backward(space, kept, down_view, d_pre.matrix(rows, 2 * F), scaled_h.matrix(rows, F),
                     lrmoe::vector_view<float, device>{});
    on.weight_gradient(space, rows_of{scaled_h.matrix(rows, F)}, kept.d_out, groups,
                       d_down.tensor(2, F, D));
    on.weight_gradient(space, kept.x, rows_of{d_pre.matrix(rows, 2 * F)}, groups,
                       d_gate_up.tensor(2, D, 2 * F));
    on.gate_up_backward(space, rows_of{d_pre.matrix(rows, 2 * F)}, groups, gate_up_view,
                        dx.matrix(rows, D));
    // Two tokens of which each sums two far rows.
    const array<index_type> row_of_pair(std::vector<index_type>{at, at + 19, at + 3, -1});
    const array<bf16> out(2 * D);
    lrmoe::combine(space, lrmoe::matrix_view<const bf16, device>(y.matrix(rows, D)),
                   lrmoe::vector_view<const index_type, device>(row_of_pair.vector()),
                   lrmoe::matrix_view<const float, device>{},
                   lrmoe::matrix_view<const bf16, device>{}, out.matrix(2, D));
    space.fence("lrmoe_test::large_offsets");
    for (const double value : out.values()) REQUIRE(std::isfinite(value));
    return std::vector{pre.bits(first * 2 * F, M * 2 * F),
                       h.bits(first * F, M * F),
                       y.bits(first * D, M * D),
                       d_pre.bits(first * 2 * F, M * 2 * F),
                       scaled_h.bits(first * F, M * F),
                       dx.bits(first * D, M * D),
                       d_gate_up.bits(),
                       d_down.bits(),
                       out.bits()};
  };
  const bool gathered = GENERATE(false, true);
  CHECK(run(beyond / D + 8, gathered) == run(0, gathered));
}

TEST_CASE("experts whose weights lie beyond 2^31 elements train on a GPU as the first ones do",
          "[experts]") {
  fixture::random draw(6);
  constexpr integer T = 30, D = 64, F = 512;
  problem p =
      random_problem(draw, {T, D, F, 2, 1, 0}, oracle::format::bfloat16, routing_kind::given);
  using policies = policies_of<lrmoe::given_routing>;
  policies choice;
  choice.estimator = lrmoe::top{};
  const auto run = [&](integer E) {
    // Expert 1 of the problem becomes the last of E experts; all between are empty.
    const integer wide = D * 2 * F, narrow = F * D;
    const large_array<bf16> gate_up(E * wide), down(E * narrow);
    const large_array<float> d_gate_up(E * wide), d_down(E * narrow);
    for (const integer e : {integer{0}, integer{1}}) {
      const integer to = e == 0 ? 0 : E - 1;
      gate_up.put(to * wide,
                  {p.in.gate_up.begin() + e * wide, p.in.gate_up.begin() + (e + 1) * wide});
      down.put(to * narrow, {p.in.down.begin() + e * narrow, p.in.down.begin() + (e + 1) * narrow});
      d_gate_up.clear(to * wide, wide);
      d_down.clear(to * narrow, narrow);
    }
    problem moved = p;
    for (auto& e : moved.in.experts) e = e == 0 ? 0 : static_cast<std::int32_t>(E - 1);
    const call<bf16> views(moved);
    lrmoe::expert_weights<bf16, device> weights;
    weights.gate_up = gate_up.tensor(E, D, 2 * F);
    weights.down = down.tensor(E, F, D);
    lrmoe::expert_gradients<float, device> gradients;
    gradients.gate_up = d_gate_up.tensor(E, D, 2 * F);
    gradients.down = d_down.tensor(E, F, D);
    lrmoe::context<backend> context;
    layer_of<policies, bf16> layer(context, {D, F, E, 1, 0}, choice);
    layer.forward(0, views.x_view(), views.router_input<lrmoe::given_routing>(), weights,
                  views.out_view());
    layer.backward(views.d_out_view(), weights, views.dx_view(),
                   views.router_gradient<lrmoe::given_routing>(), gradients);
    std::vector<fixture::byte_string> result{views.out.bits(), views.dx.bits(),
                                             views.d_given.bits()};
    for (const integer e : {integer{0}, E - 1}) {
      result.push_back(d_gate_up.bits(e * wide, wide));
      result.push_back(d_down.bits(e * narrow, narrow));
    }
    return result;
  };
  CHECK(run(beyond / (F * D) + 3) == run(2));
}
